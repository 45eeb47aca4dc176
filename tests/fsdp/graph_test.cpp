// Graphs of every shape: several forwards, outputs and uses, checkpoints, partial and late
// backwards.
#include "harness.h"
#include "modules.h"
#include "stack_runs.h"
#include "support/catch.h"

#include <thread>

namespace convoy {
namespace {

using namespace test;

// Returns its second output only sometimes used; passes its input through as the third.
struct ForkImpl : torch::nn::Module {
  ForkImpl() : inner(register_module("inner", torch::nn::Linear(6, 6))) {}
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(torch::Tensor x) {
    const auto y = inner(x);
    return {y.tanh(), y.sigmoid(), x};
  }
  torch::nn::Linear inner;
};
using Fork = Unit<ForkImpl>;

struct ForkedImpl : torch::nn::Module {
  ForkedImpl()
      : first(register_module("first", Fork())), second(register_module("second", Fork())) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto [a, unused, same] = first(x);
    const auto [b, c, again] = second(a + same);
    return b * c + again;
  }
  Fork first, second;
};
using Forked = Unit<ForkedImpl>;

// A unit inside a unit.
struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : before(register_module("before", torch::nn::Linear(6, 6))),
        layer(register_module("layer", Layer())),
        after(register_module("after", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x) { return after(layer(before(x))); }
  torch::nn::Linear before;
  Layer layer;
  torch::nn::Linear after;
};
using Outer = Unit<OuterImpl>;
struct NestImpl : torch::nn::Module {
  NestImpl() : a(register_module("a", Outer())), b(register_module("b", Outer())) {}
  torch::Tensor forward(torch::Tensor x) { return b(a(x)); }
  Outer a, b;
};
using Nest = Unit<NestImpl>;

}  // namespace

TEST_CASE("C041: two forwards, then two backwards, or one of the sum") {
  compare_runs([](Stack& model, int rank, int step) {
    const auto first = model(stack_input(rank, step)).square().mean();
    const auto second = model(stack_input(rank, step + 50)).square().mean();
    (first + second).backward();
  });
  // Each backward of its own adds a mean of its own: not the bits of the mean of the sums.
  compare_runs(
      [](Stack& model, int rank, int step) {
        const auto first = model(stack_input(rank, step)).square().mean();
        const auto second = model(stack_input(rank, step + 50)).square().mean();
        first.backward();
        second.backward();
      },
      2, 1e-6);
}

TEST_CASE("retain_graph: a second backward over the same graph adds the same again") {
  compare_runs(
      [](Stack& model, int rank, int step) {
        const auto loss = model(stack_input(rank, step)).square().mean();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      },
      2, 1e-6);
}

TEST_CASE("a unit used twice in one forward") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    return self.layers[2](self.layers[0](self.layers[1](self.layers[0](x))));
  });
}

TEST_CASE("units may run in another order than they were registered in") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    return self.layers[0](self.layers[2](self.layers[1](x)));
  });
}

TEST_CASE("several outputs, an unused one, and one that is the input") {
  check_parity(training_of<Forked>(), 3);
}

TEST_CASE("units inside units") {
  check_parity(training_of<Nest>(), 3);
  check_parity(training_of<Nest>(), 2, {.wrap = wrap_units_of<Outer>()});
}

TEST_CASE("a weight read detached besides its ordinary use") {
  struct DetachedImpl : torch::nn::Module {
    DetachedImpl() : inner(register_module("inner", torch::nn::Linear(6, 6))) {}
    torch::Tensor forward(torch::Tensor x) {
      // Backward multiplies by the detached weight after the weight's own gradient is complete.
      const auto scaled = x.matmul(inner->weight.detach());
      return inner(scaled.tanh());
    }
    torch::nn::Linear inner;
  };
  struct RootImpl : torch::nn::Module {
    RootImpl()
        : one(register_module("one", Unit<DetachedImpl>())),
          two(register_module("two", Unit<DetachedImpl>())) {}
    torch::Tensor forward(torch::Tensor x) { return two(one(x)); }
    Unit<DetachedImpl> one, two;
  };
  check_parity(training_of<Unit<RootImpl>>(), 2);
}

TEST_CASE("autograd::grad works for inputs and names a parameter it is asked for") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack reference = make_seeded_stack();
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = stack_input(rank.rank(), 0).requires_grad_(true);
      const auto expected = torch::autograd::grad({reference(x).square().mean()}, {x})[0];
      check_same_bits(torch::autograd::grad({model(x).square().mean()}, {x})[0], expected);
      check(!model->head->weight.grad().defined(), "no parameter has a gradient");
      const auto loss = model(x).square().mean();
      check_throws(ErrorKind::kMisuse, "'head.weight'",
                   [&] { torch::autograd::grad({loss}, {model->head->weight}); });
    });
  }
}

TEST_CASE("backward for some inputs only leaves the others without a gradient") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto loss = model(stack_input(rank.rank(), 0)).square().mean();
    torch::autograd::backward({loss}, {}, std::nullopt, false, {model->head->weight});
    check(model->head->weight.grad().defined(), "asked for");
    check(!model->head->bias.grad().defined(), "not asked for");
  });
}

TEST_CASE("create_graph is refused by name") {
  ranks(1, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto loss = model(stack_input(0, 0)).square().mean();
    check_throws(ErrorKind::kMisuse, "create_graph",
                 [&] { loss.backward({}, true, /*create_graph=*/true); });
    model(stack_input(0, 0)).square().mean().backward();  // and leaves nothing behind
  });
}

TEST_CASE("backward in another thread") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto loss = model(stack_input(rank.rank(), 0)).square().mean();
    std::thread([&] { loss.backward(); }).join();
    check(model->head->weight.grad().defined(), "a gradient");
  });
}

TEST_CASE("a second backward at the same time in another thread is refused") {
  ranks(1, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto other = model(stack_input(0, 1)).square().mean();
    const auto y = model(stack_input(0, 0));
    std::string refused;
    model->layers[1]->up->weight.register_hook([&](torch::Tensor) {
      std::thread([&] {
        try {
          other.backward();
        } catch (const std::exception& error) {
          refused = error.what();
        }
      }).join();
    });
    y.square().mean().backward();
    check(refused.find("two threads") != std::string::npos, "refused: " + refused);
    check(model->head->weight.grad().defined(), "the first one is whole");
  });
}

TEST_CASE("wrapper and model may be gone before backward runs") {
  ranks(2, [](Rank& rank) {
    at::Tensor loss, leaf;
    {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      leaf = model->head->weight;
      loss = model(stack_input(rank.rank(), 0)).square().mean();
    }
    loss.backward();
    check(leaf.grad().defined(), "the leaf has its gradient");
  });
}

TEST_CASE("nothing outlives wrapper, model and graphs") {
  ranks(2, [](Rank& rank) {
    std::weak_ptr<fsdp::ShardedModel> alive;
    {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      alive = fsdp.sharded();
      for (int step = 0; step < 2; ++step) {
        model(stack_input(rank.rank(), step)).square().mean().backward();
      }
      const auto pending = model(stack_input(rank.rank(), 2));
      check(!alive.expired(), "in use");
    }
    check(alive.expired(), "a cycle keeps the sharded model alive");
  });
}

TEST_CASE("inference mode and no_grad forwards gather as others do") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack reference = make_seeded_stack();
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto expected = reference(stack_input(rank.rank(), 0)).detach();
      {
        const c10::InferenceMode inference;
        check_same_bits(model(stack_input(rank.rank(), 0)), expected, "inference mode");
      }
      {
        const torch::NoGradGuard no_grad;
        check_same_bits(model(stack_input(rank.rank(), 0)), expected, "no_grad");
      }
      model(stack_input(rank.rank(), 0)).square().mean().backward();
      check(model->head->weight.grad().defined(), "training goes on");
    });
  }
}

TEST_CASE("sparse gradients are reduced densely") {
  struct LookupImpl : torch::nn::Module {
    LookupImpl()
        : table(register_module(
              "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 6).sparse(true)))) {}
    torch::Tensor forward(torch::Tensor ids) { return table(ids); }
    torch::nn::Embedding table;
  };
  ranks(2, [](Rank& rank) {
    Unit<LookupImpl> model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto ids = torch::full({1}, rank.rank() == 0 ? 3 : 9, torch::kLong);
    (model(ids).sum() * 2.0).backward();
    auto expected = torch::zeros({11, 6});
    expected[3].fill_(1.0);
    expected[9].fill_(1.0);
    const ShardSpan span = fsdp.shard_spans()[0];
    check_same_bits(span.leaf.grad().flatten(),
                    expected.flatten().narrow(0, span.begin, span.numel), "mean of both");
  });
}

TEST_CASE("stepping between forward and backward is torch's own error") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1));
    model(stack_input(rank.rank(), 0)).square().mean().backward();
    const auto loss = model(stack_input(rank.rank(), 1)).square().mean();
    adam.step();
    meet(rank, "after the step");
    std::string text;
    try {
      loss.backward();
    } catch (const std::exception& error) {
      text = error.what();
    }
    // Whichever rank is later may hear of the other's failure first.
    check(text.find("modified by an inplace operation") != std::string::npos ||
              text.find("ended with an error") != std::string::npos,
          "an old graph must not be used after a step: " + text);
  });
}

TEST_CASE("a forward in a fresh thread tells its own graph from what came before") {
  for (const bool shared : {true, false}) {
    const auto run = [](torch::nn::Sequential& model, int rank) {
      auto first = model[0]->as<Layer>()->forward(stack_input(rank, 0));
      for (int i = 0; i < 10; ++i) first = first.sin();
      torch::Tensor second;
      std::exception_ptr failure;
      std::thread([&] {
        at::set_num_threads(1);
        try {
          second = model[1]->as<Layer>()->forward(first);
        } catch (...) {
          failure = std::current_exception();
        }
      }).join();
      if (failure) std::rethrow_exception(failure);
      second.square().mean().backward();
    };
    const auto make = [] {
      torch::nn::Sequential model{Layer(), Layer()};
      seed_parameters(*model, 3);
      return model;
    };
    torch::nn::Sequential plain = make();
    mean_gradients(plain->parameters(), 2, [&](int rank) { run(plain, rank); });
    ranks(2, [&](Rank& rank) {
      torch::nn::Sequential model = make();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      run(model, rank.rank());
      for (const ShardSpan& span : fsdp.shard_spans()) {
        const auto whole = plain->named_parameters()[span.name].grad();
        check_same_bits(span.leaf.grad().flatten(),
                        whole.flatten().narrow(0, span.begin, span.numel), span.name);
      }
    });
  }
}

}  // namespace convoy
