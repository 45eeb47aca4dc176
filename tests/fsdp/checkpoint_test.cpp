// Activation checkpointing around units, inside of them, and of them.
#include "stack_runs.h"
#include "support/catch.h"

#include <algorithm>
#include <memory>

namespace convoy {

using namespace test;

namespace {

/// Tells whoever asks what happens while it runs, in forward and in recomputations.
struct LookingImpl : torch::nn::Module {
  explicit LookingImpl(std::shared_ptr<std::function<void()>> look_)
      : up(register_module("up", torch::nn::Linear(64, 200))),
        down(register_module("down", torch::nn::Linear(200, 64))),
        look(std::move(look_)) {}
  torch::Tensor forward(torch::Tensor x) {
    (*look)();
    return x + down(torch::tanh(up(x)));
  }
  torch::nn::Linear up, down;
  std::shared_ptr<std::function<void()>> look;
};
using Looking = Unit<LookingImpl>;

struct LookingStackImpl : torch::nn::Module {
  explicit LookingStackImpl(const std::shared_ptr<std::function<void()>>& look) {
    for (int i = 0; i < 5; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Looking(look)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Looking> layers;
};
using LookingStack = Unit<LookingStackImpl>;

int full_units(const fsdp::FullySharded& fsdp) {
  const auto units = fsdp.units();
  return static_cast<int>(std::count_if(units.begin(), units.end(), [](const auto& unit) {
    return unit.name != "(root)" && unit.resident_bytes > 0;
  }));
}

}  // namespace

TEST_CASE("C041: two forwards with checkpoints, then two backwards, or one of the sum") {
  const Body body = [](StackImpl& self, torch::Tensor x) {
    for (auto& layer : self.layers) {
      x = checkpoint([&layer](torch::Tensor y) { return layer(y); }, x);
    }
    return x;
  };
  for (const bool one_backward : {true, false}) {
    compare_runs(
        [&](Stack& model, int rank, int step) {
          model->body = body;
          const auto first = model(stack_input(rank, step).requires_grad_(true)).square().mean();
          const auto second =
              model(stack_input(rank, step + 50).requires_grad_(true)).square().mean();
          if (one_backward) return (first + second).backward();
          first.backward();
          second.backward();
        },
        2, 1e-6);
  }
}

TEST_CASE("a unit in a checkpoint, and all units in one") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    for (auto& layer : self.layers) {
      x = checkpoint([&layer](torch::Tensor y) { return layer(y); }, x);
    }
    return x;
  });
  compare_body([](StackImpl& self, torch::Tensor x) {
    return checkpoint(
        [&self](torch::Tensor y) {
          for (auto& layer : self.layers) y = layer(y);
          return y;
        },
        x);
  });
}

TEST_CASE("checkpoints nested in checkpoints, and a unit in two of them") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    return checkpoint(
        [&self](torch::Tensor y) {
          y = self.layers[0](y);
          y = checkpoint([&self](torch::Tensor z) { return self.layers[1](z); }, y);
          return self.layers[2](y);
        },
        x);
  });
  compare_body(
      [](StackImpl& self, torch::Tensor x) {
        for (const int i : {0, 1, 0, 2}) {
          x = checkpoint([&self, i](torch::Tensor y) { return self.layers[std::size_t(i)](y); }, x);
        }
        return x;
      },
      1e-6, 3);
}

TEST_CASE("two checkpoints inside a unit") {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl()
        : a(register_module("a", torch::nn::Linear(6, 6))),
          b(register_module("b", torch::nn::Linear(6, 6))) {}
    torch::Tensor forward(torch::Tensor x) {
      x = checkpoint([this](torch::Tensor y) { return torch::tanh(a(y)); }, x);
      return checkpoint([this](torch::Tensor y) { return b(torch::tanh(a(y))); }, x);
    }
    torch::nn::Linear a, b;
  };
  struct RootImpl : torch::nn::Module {
    RootImpl()
        : one(register_module("one", Unit<TwiceImpl>())),
          two(register_module("two", Unit<TwiceImpl>())) {}
    torch::Tensor forward(torch::Tensor x) { return two(one(x)); }
    Unit<TwiceImpl> one, two;
  };
  auto training = training_of<Unit<RootImpl>>();
  training.loss = [](Unit<RootImpl>& model, int rank, int step) {
    return model(stack_input(rank, step).requires_grad_(true)).square().mean();
  };
  check_parity(training, 2);
}

TEST_CASE("checkpointed units give the bits of plain ones on both gather paths") {
  const auto plain = tiny_training({}, 3);
  auto checkpointed = plain;
  checkpointed.make = [make = plain.make] {
    TinyGpt model = make();
    check_equal(checkpoint_units(model, wrap_units_of<TinyBlock>()), std::size_t{3}, "blocks");
    return model;
  };
  for (const int world : {1, 2, 3}) {
    const StateDict expected = train_alone(plain, world);
    check_same_state(train_alone(checkpointed, world), expected, "one process");
    for (const bool shared : {true, false}) {
      fsdp::Options options{.wrap = wrap_units_of<TinyBlock>(), .shared_gather = shared};
      check_same_state(train_sharded(checkpointed, world, options), expected,
                       concat("world ", world, ", ", path_name(shared)));
      options.reshard_after_forward = false;
      check_same_state(train_sharded(checkpointed, world, options), expected, "kept full");
    }
  }
}

TEST_CASE("two units at most are full while checkpointed units run again") {
  ranks(2, [](Rank& rank) {
    auto look = std::make_shared<std::function<void()>>([] {});
    LookingStack model(look);
    checkpoint_units(model, wrap_units_of<Looking>());
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
    int most = 0, looks = 0;
    *look = [&] {
      most = std::max(most, full_units(fsdp));
      ++looks;
    };
    for (int step = 0; step < 3; ++step) {
      model(torch::ones({2, 64}) * (step + 1)).square().mean().backward();
      check_equal(full_units(fsdp), 0, "after backward");
      model->zero_grad();
    }
    check_equal(looks, 3 * 2 * 5, "forwards and recomputations");
    check_equal(most, 2, "full units");
  });
}

TEST_CASE("a recomputation that throws inside a unit fails the step and not the process") {
  for (const bool shared : {true, false}) {
    ranks(1, [&](Rank& rank) {
      auto look = std::make_shared<std::function<void()>>([] {});
      LookingStack model(look);
      checkpoint_units(model, wrap_units_of<Looking>());
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = torch::ones({2, 64});
      auto loss = model(x).square().mean();
      *look = [] { throw std::runtime_error("in the recomputation"); };
      bool thrown = false;
      try {
        loss.backward();
      } catch (const std::runtime_error& error) {
        thrown = std::string(error.what()).find("in the recomputation") != std::string::npos;
      }
      check(thrown, "backward throws what the unit threw");
      check_equal(full_units(fsdp), 0, "after the failure");
      *look = [] {};
      model(x).square().mean().backward();
      check(fsdp.shard_spans()[0].leaf.grad().defined(), "the next step trains");
    });
  }
}

}  // namespace convoy
