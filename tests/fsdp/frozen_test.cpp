// Units that are partly frozen, optimizers over parts of a model, calls that not all ranks make.
#include "harness.h"
#include "stack_runs.h"
#include "support/catch.h"

#include <array>
#include <functional>

namespace convoy {
namespace {

using namespace test;

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kLow = 32;

// 256 KiB that are frozen and 64 KiB that train.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl()
      : weight(register_parameter("weight", torch::full({kWidth, kWidth}, 1.0 / 256),
                                  /*requires_grad=*/false)),
        down(register_parameter("down", torch::full({kLow, kWidth}, 0.5))),
        up(register_parameter("up", torch::full({kWidth, kLow}, 0.25))) {}
  torch::Tensor forward(torch::Tensor x) {
    return torch::linear(x, weight) + torch::linear(torch::linear(x, down), up) / 4096;
  }
  torch::Tensor weight, down, up;
};
using Adapted = Unit<AdaptedImpl>;

struct AdaptedStackImpl : torch::nn::Module {
  AdaptedStackImpl() {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Adapted()));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) {
      x = block(x);
      if (look) {
        x.register_hook([this](const at::Tensor& gradient) {
          look();
          return gradient;
        });
      }
    }
    return x;
  }
  std::vector<Adapted> blocks;
  std::function<void()> look;  ///< Called in backward before each block's.
};
using AdaptedStack = Unit<AdaptedStackImpl>;

torch::Tensor wide_input(int rank, int step) {
  return torch::linspace(-1, 1 + rank, kWidth).view({1, kWidth}) * (step + 1);
}

Training<AdaptedStack> adapted_training() {
  return {.make = [] { return AdaptedStack(); },
          .loss = [](AdaptedStack& model, int rank,
                     int step) { return model(wide_input(rank, step)).square().mean(); },
          .optimizer = exact_sgd,
          .steps = 10};
}

}  // namespace

TEST_CASE("C030: gradient memory of a unit that is mostly frozen is that of what trains") {
  const auto training = adapted_training();
  const StateDict expected = train_alone(training, 2);
  constexpr std::int64_t kUnitTrains = 64 * 1024;
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      AdaptedStack model = training.make();
      const StateDict before = plain_state(model);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto optimizer = training.optimizer(model->parameters());
      int looks = 0;
      model->look = [&] {
        ++looks;
        // The slices of all units, as if they were complete already, and what is in flight.
        const auto bytes = 8 * kUnitTrains / 2 + fsdp.gradient_buffer_bytes();
        check(bytes <= 8 * kUnitTrains + kUnitTrains, concat(bytes, " bytes within backward"));
      };
      for (int step = 0; step < training.steps; ++step) {
        training.loss(model, rank.rank(), step).backward();
        check_equal(looks, 8 * (step + 1), "looks");
        std::int64_t bytes = fsdp.gradient_buffer_bytes();
        for (const auto& parameter : model->parameters()) {
          if (parameter.grad().defined()) {
            bytes += static_cast<std::int64_t>(parameter.grad().nbytes());
          }
        }
        check(bytes <= 8 * kUnitTrains + kUnitTrains,
              concat(bytes, " bytes of gradients in step ", step));
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() != 0) return;
      check_same_state(state, expected, path_name(shared));
      check_same_bits(state["block3.weight"], before["block3.weight"], "frozen");
      check(!same_bits(state["block3.up"], before["block3.up"]), "trained");
    });
  }
}

TEST_CASE("parts of a unit may be frozen and thawed after wrapping") {
  const auto freeze = [](Stack& model, bool first) {
    model->layers[0]->up->weight.set_requires_grad(!first);
    model->layers[0]->down->weight.set_requires_grad(first);
    for (const auto& parameter : {model->layers[0]->up->weight, model->layers[0]->down->weight}) {
      if (!parameter.requires_grad()) parameter.mutable_grad().reset();
    }
  };
  const auto loss = [](Stack& model, int rank, int step) {
    return model(stack_input(rank, step)).square().mean();
  };
  StateDict expected;
  {
    Stack model = make_seeded_stack();
    const auto parameters = model->parameters();
    const auto optimizer = exact_sgd(parameters);
    for (int step = 0; step < 4; ++step) {
      freeze(model, step < 2);
      mean_gradients(parameters, 3, [&](int rank) { loss(model, rank, step).backward(); });
      optimizer->step();
    }
    expected = plain_state(model);
  }
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      freeze(model, true);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      check_equal(fsdp.units().back().name, std::string("layer0 (frozen part)"), "planned apart");
      const auto optimizer = exact_sgd(model->parameters());
      for (int step = 0; step < 4; ++step) {
        freeze(model, step < 2);
        loss(model, rank.rank(), step).backward();
        for (const auto& unit : fsdp.units()) {
          check_equal(unit.resident_bytes, std::int64_t{0}, unit.name);
        }
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
    });
  }
}

TEST_CASE("C036: an optimizer over half of the parameters in two groups steps that half only") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      const StateDict before = plain_state(model);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto group = [](std::vector<at::Tensor> leaves, double lr) {
        return torch::optim::OptimizerParamGroup(std::move(leaves),
                                                 std::make_unique<torch::optim::SGDOptions>(lr));
      };
      torch::optim::SGD optimizer({group(model->layers[0]->parameters(), 0.125),
                                   group(model->layers[1]->parameters(), 0.0)},
                                  torch::optim::SGDOptions(1.0));
      for (int step = 0; step < 3; ++step) {
        model(stack_input(rank.rank(), step)).square().mean().backward();
        optimizer.step();
        model->zero_grad();
      }
      check_equal(optimizer.param_groups().size(), std::size_t{2}, "groups");
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() != 0) return;
      for (const auto& item : state) {
        check(same_bits(item.value(), before[item.key()]) == !item.key().starts_with("layer0."),
              item.key());
      }
    });
  }
}

TEST_CASE("C036: an optimizer built after forwards steps like one built before them") {
  const auto loss = [](Stack& model, int rank, int step) {
    return model(stack_input(rank, step)).square().mean();
  };
  StateDict expected;
  {
    Stack model = make_seeded_stack();
    const auto optimizer = exact_sgd(model->parameters());
    for (int step = 0; step < 3; ++step) {
      mean_gradients(model->parameters(), 2, [&](int rank) { loss(model, rank, step).backward(); });
      optimizer->step();
    }
    expected = plain_state(model);
  }
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      {
        const torch::NoGradGuard no_grad;
        model(stack_input(rank.rank(), 7));
      }
      auto first = loss(model, rank.rank(), 0);  // Its optimizer does not exist yet.
      const auto optimizer = exact_sgd(model->parameters());
      for (int step = 0; step < 3; ++step) {
        (step == 0 ? first : loss(model, rank.rank(), step)).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
    });
  }
}

TEST_CASE("C039: the full state asked for by one rank is an error on both that names both calls") {
  for (const bool shared : {true, false}) {
    std::array<std::string, 2> texts;
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto before = plain_state(model);
      try {
        if (rank.rank() == 0) full_state_dict(fsdp);
        if (rank.rank() == 1) model(stack_input(1, 0)).square().mean().backward();
        check(false, "no error");
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank.rank())] = error.what();
      }
      check_same_state(plain_state(model), before, "nothing is written");
    });
    for (const auto& text : texts) {
      INFO(text);
      CHECK(text.find("reading the full state") != std::string::npos);
      CHECK(text.find(shared ? "all have stepped" : "(root)") != std::string::npos);
    }
  }
}

TEST_CASE("C044: private gathers of different units are an error that names both") {
  std::array<std::string, 2> texts;
  ranks(2, [&](Rank& rank) {
    Stack model = make_seeded_stack();
    model->body = [&](StackImpl& self, torch::Tensor x) {
      return self.layers[rank.rank() == 0 ? 1 : 2](self.layers[0](x));
    };
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
    try {
      for (int step = 0; step < 3; ++step) {
        model(stack_input(rank.rank(), step)).square().mean().backward();
        check(false, "a finished step");
      }
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(rank.rank())] = error.what();
    }
  });
  for (const auto& text : texts) {
    INFO(text);
    CHECK(text.find("layer1") != std::string::npos);
    CHECK(text.find("layer2") != std::string::npos);
  }
}

}  // namespace convoy
