// Accumulation: under no_sync, all synchronised, mixed; and every way to drop gradients between.
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

#include <algorithm>
#include <array>

namespace convoy {
namespace {

using namespace test;

// Three rounds of four backwards of gradient (rank + 1) * k; `synchronised[k - 1]` says which of
// them reduce. Looks at gradient memory all the while.
void check_fifteen(const std::array<bool, 4>& synchronised, bool shared) {
  ranks(2, [&](Rank& rank) {
    Scale model(std::vector<std::int64_t>{64, 32});
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
    const std::int64_t full = fsdp.units()[0].full_bytes;
    check_equal(fsdp.gradient_buffer_bytes(), full, "one full unit for reductions");
    std::int64_t most_kept = 0;
    model->weight.register_hook([&](const torch::Tensor&) {
      most_kept = std::max(most_kept, fsdp.local_gradient_bytes());
    });
    for (int round = 0; round < 3; ++round) {
      for (int k = 1; k <= 4; ++k) {
        const auto backward = [&] { model((rank.rank() + 1.0) * k).backward(); };
        if (synchronised[static_cast<std::size_t>(k - 1)]) {
          backward();
          check_equal(fsdp.local_gradient_bytes(), std::int64_t{0}, "kept after a reduce");
          check_equal(model->weight.grad().numel() * 8, full, "a shard of the gradient");
        } else {
          const auto pause = fsdp.no_sync();
          backward();
          check_equal(fsdp.local_gradient_bytes(), full, "no_sync keeps full gradients");
        }
      }
      check_same_bits(model->weight.grad(), torch::full(model->weight.sizes(), 15.0F));
      model->zero_grad();
    }
    const bool all = synchronised == std::array{true, true, true, true};
    check_equal(most_kept, all ? 0 : full, "shards and one unit at most, or all under no_sync");
  });
}

// One accumulation cycle of `micro` backwards a step, the last one synchronised, in one process.
StateDict accumulate_alone(const Training<TinyGpt>& training, int world, int micro) {
  TinyGpt model = training.make();
  const auto parameters = model->parameters();
  const auto optimizer = training.optimizer(parameters);
  for (int step = 0; step < training.steps; ++step) {
    mean_gradients(parameters, world, [&](int rank) {
      for (int m = 0; m < micro; ++m) training.loss(model, rank, step * micro + m).backward();
    });
    optimizer->step();
  }
  return plain_state(model);
}

}  // namespace

TEST_CASE("C032: accumulated gradients are right synchronised, under no_sync, and mixed") {
  for (const bool shared : {true, false}) {
    check_fifteen({true, true, true, true}, shared);
    check_fifteen({false, false, false, true}, shared);
    check_fifteen({true, false, false, true}, shared);
    check_fifteen({false, true, false, true}, shared);
  }
}

TEST_CASE("accumulation under no_sync has the bits of one process") {
  const auto training = tiny_training({}, 3);
  const StateDict expected = accumulate_alone(training, 3, 3);
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      TinyGpt model = training.make();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto optimizer = training.optimizer(model->parameters());
      for (int step = 0; step < training.steps; ++step) {
        {
          const auto pause = fsdp.no_sync();
          for (int m = 0; m < 2; ++m) training.loss(model, rank.rank(), step * 3 + m).backward();
        }
        training.loss(model, rank.rank(), step * 3 + 2).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
    });
  }
}

TEST_CASE("what counts is where backward runs, not forward") {
  ranks(2, [](Rank& rank) {
    Scale model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    at::Tensor loss;
    {
      const auto pause = fsdp.no_sync();
      loss = model(rank.rank() + 1.0);
    }
    loss.backward();  // synchronised: (1 + 2) / 2
    for (const ShardSpan& span : fsdp.shard_spans()) {
      check_same_bits(span.leaf.grad(), torch::full(span.leaf.sizes(), 1.5F));
    }
    const auto again = model(4.0);
    {
      const auto pause = fsdp.no_sync();
      const auto inner = fsdp.no_sync();  // nests
      again.backward();
    }
    check(fsdp.local_gradient_bytes() > 0, "kept");
  });
}

TEST_CASE("zero_grad in every form drops gradients, those kept under no_sync too") {
  using Drop = std::function<void(Scale&, torch::optim::Optimizer&)>;
  const std::pair<const char*, Drop> forms[] = {
      {"optimizer, to none", [](Scale&, auto& optimizer) { optimizer.zero_grad(true); }},
      {"optimizer, in place", [](Scale&, auto& optimizer) { optimizer.zero_grad(false); }},
      {"model, to none", [](Scale& model, auto&) { model->zero_grad(true); }},
      {"model, in place", [](Scale& model, auto&) { model->zero_grad(false); }},
      {"by hand", [](Scale& model, auto&) { model->weight.mutable_grad().reset(); }},
  };
  for (const bool shared : {true, false}) {
    for (const auto& [name, drop] : forms) {
      for (const bool kept_local : {false, true}) {
        ranks(2, [&, drop = drop, name = name](Rank& rank) {
          Scale model;
          FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
          torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
          model(100.0).backward();
          if (kept_local) {
            const auto pause = fsdp.no_sync();
            model(1000.0).backward();
          }
          drop(model, optimizer);
          model(rank.rank() + 1.0).backward();
          const at::Tensor gradient = model->weight.grad();
          check_same_bits(gradient, torch::full(gradient.sizes(), 1.5F), name);
        });
      }
    }
  }
}

TEST_CASE("a kept gradient cannot be stepped with by accident") {
  ranks(2, [](Rank& rank) {
    Scale model(std::vector<std::int64_t>{4, 8});
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    {
      const auto pause = fsdp.no_sync();
      model(1.0).backward();
    }
    for (const MakeOptimizer& make : {MakeOptimizer(exact_sgd), MakeOptimizer([](auto p) {
                                        return std::make_unique<torch::optim::Adam>(
                                            p, torch::optim::AdamOptions(0.1));
                                      })}) {
      bool threw = false;
      try {
        make(model->parameters())->step();
      } catch (const std::exception&) {
        threw = true;
      }
      check(threw, "stepping on a placeholder must fail");
    }
  });
}

TEST_CASE("a gradient of the user's own is added to, or refused by its shape") {
  ranks(2, [](Rank& rank) {
    Scale model(std::vector<std::int64_t>{6, 4});
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model->weight.mutable_grad() = torch::full_like(model->weight, 2.0).detach();
    model(rank.rank() + 1.0).backward();
    check_same_bits(model->weight.grad(), torch::full(model->weight.sizes(), 3.5F));
  });
  ranks(1, [](Rank& rank) {
    Scale model(std::vector<std::int64_t>{6, 4});
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model->weight.mutable_grad() = torch::ones({3});
    check_throws(ErrorKind::kMisuse, "'weight'", [&] { model(1.0).backward(); });
  });
}

TEST_CASE("gradients that the user keeps do not change with the next backward") {
  ranks(2, [](Rank& rank) {
    Scale model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model(2.0).backward();
    const at::Tensor kept = model->weight.grad();
    const at::Tensor alias = kept.detach();
    model->zero_grad();
    model(7.0).backward();
    check_same_bits(kept, torch::full(kept.sizes(), 2.0F), "kept");
    check_same_bits(alias, torch::full(kept.sizes(), 2.0F), "alias");
    check_same_bits(model->weight.grad(), torch::full(kept.sizes(), 7.0F), "new");
  });
}

namespace {

// The gradient of `added` is the very tensor that flows on to `middle`, whose hook writes to it.
class SharedGradientImpl : public torch::nn::Module {
 public:
  torch::Tensor forward(const torch::Tensor& x) {
    auto middle = x * scale;
    middle.register_hook([](const torch::Tensor& gradient) { gradient.mul_(100.0); });
    return (middle + added) * x;
  }
  torch::Tensor scale = register_parameter("scale", torch::ones({90, 90}));
  torch::Tensor added = register_parameter("added", torch::ones({90, 90}));
};
using SharedGradient = Unit<SharedGradientImpl>;

}  // namespace

TEST_CASE("a gradient that somebody else writes to later is averaged as it came") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      SharedGradient model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      for (int step = 0; step < 3; ++step) {
        fsdp(torch::full({90, 90}, 1.0F + static_cast<float>(rank.rank()))).sum().backward();
        const at::Tensor added = model->added.grad();
        check_same_bits(added, torch::full(added.sizes(), 1.5F), "added");
        const at::Tensor scale = model->scale.grad();
        check_same_bits(scale, torch::full(scale.sizes(), 250.0F), "scale");
        model->zero_grad();
      }
    });
  }
}

}  // namespace convoy
