// What autograd allows around a unit, and what must not pass in silence because a leaf is a slice.
#include "convoy/base/check.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/sgd.h"
#include "harness.h"
#include "modules.h"
#include "stack_runs.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// A function whose backward has no gradient for its second input.
class NoGradient : public torch::autograd::Function<NoGradient> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x,
                               torch::Tensor weight) {
    return x + 0.0 * weight.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], torch::Tensor()};
  }
};

// Of its three parameters one is used on even ranks only, and one gets undefined gradients.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl()
      : inner(register_module("inner", torch::nn::Linear(6, 6))),
        even(register_parameter("even", torch::ones({4, 6}))),
        never(register_parameter("never", torch::ones({3, 6}))) {}
  torch::Tensor forward(torch::Tensor x, int rank) {
    x = inner(x);
    if (rank % 2 == 0) x = x * even.sum(0);
    return NoGradient::apply(x, never);
  }
  torch::nn::Linear inner;
  torch::Tensor even, never;
};
using Sometimes = Unit<SometimesImpl>;

// Parameters whose slices have a shape that fits the whole in arithmetic: one row, one element.
struct SmallImpl : torch::nn::Module {
  SmallImpl()
      : row(register_parameter("row", torch::ones({1, 64}))),
        one(register_parameter("one", torch::ones({1}))),
        scalar(register_parameter("scalar", torch::ones({}))) {}
  torch::Tensor forward(double x) { return (row * x).sum() * one * scalar; }
  torch::Tensor row, one, scalar;
};
using Small = Unit<SmallImpl>;

// Has an embedding, a head of few rows and a scale, for callers that go around it.
struct PartsImpl : torch::nn::Module {
  PartsImpl()
      : table(register_module("table", torch::nn::Embedding(64, 32))),
        head(register_module("head", torch::nn::Linear(32, 2))),
        scale(register_parameter("scale", torch::ones({1}))) {}
  torch::Tensor forward(torch::Tensor ids) { return head(table(ids)) * scale; }
  torch::nn::Embedding table;
  torch::nn::Linear head;
  torch::Tensor scale;
};
using Parts = Unit<PartsImpl>;

struct PokingImpl : torch::nn::Module {
  PokingImpl() : parts(register_module("parts", Parts())) {}
  torch::Tensor forward(torch::Tensor ids) { return poke(*this, ids); }
  Parts parts;
  std::function<torch::Tensor(PokingImpl&, torch::Tensor)> poke;
};
using Poking = Unit<PokingImpl>;

}  // namespace

TEST_CASE("in-place operations on what a unit returns, and on parts of it") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    x = self.layers[0](x);
    x.relu_();
    x = self.layers[1](x);
    x.narrow(1, 0, 3).mul_(2.0);
    x = self.layers[2](x);
    x += 1.0;
    return x;
  });
}

TEST_CASE("a parameter used on some ranks only, and one that gets undefined gradients") {
  const Training<Sometimes> training{
      .make =
          [] {
            Sometimes model;
            seed_parameters(*model, 4);
            return model;
          },
      .loss = [](Sometimes& model, int rank,
                 int step) { return model(stack_input(rank, step), rank).square().mean(); },
      .optimizer = exact_sgd,
      .steps = 3};
  check_parity(training, 3);
  ranks(3, [&](Rank& rank) {
    Sometimes model = training.make();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    training.loss(model, rank.rank(), 0).backward();
    check(model->even.grad().defined(), "used by ranks 0 and 2, so defined on rank 1 as well");
    check(!model->never.grad().defined(), "undefined everywhere");
  });
}

TEST_CASE("a shard in a graph of its own is named, also where its shape would fit") {
  for (const bool shared : {true, false}) {
    for (const char* name : {"row", "one", "scalar"}) {
      ranks(2, [&](Rank& rank) {
        Small model;
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
        const auto loss = model(2.0).sum() + model->named_parameters()[name].square().sum();
        const auto error =
            check_throws(ErrorKind::kMisuse, concat("'", name, "'"), [&] { loss.backward(); });
        check(std::string(error.what()).find("outside of unit (root)") != std::string::npos,
              error.what());
        for (const auto& parameter : model->parameters()) {
          check(!parameter.grad().defined(), "no gradient");
        }
        // Nothing is left behind.
        model(2.0).sum().backward();
        rank.comm().barrier()->wait();
      });
    }
  }
}

TEST_CASE("an embedding, a head and a scale called around their unit are named at forward") {
  const std::pair<const char*, std::function<torch::Tensor(PokingImpl&, torch::Tensor)>> ways[] = {
      {"'parts.table.weight'",
       [](PokingImpl& self, torch::Tensor i) { return self.parts->table(i); }},
      {"'parts.head.",
       [](PokingImpl& self, torch::Tensor) {
         return self.parts->head(torch::ones({1, 32}));
       }},
      {"'parts.scale'",
       [](PokingImpl& self, torch::Tensor) { return torch::ones({5}) * self.parts->scale; }},
  };
  for (const auto& [name, poke] : ways) {
    ranks(1, [&, name = name, poke = poke](Rank& rank) {
      Poking model;
      model->poke = poke;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      const auto ids = torch::zeros({1}, torch::kLong);
      check_throws(ErrorKind::kMisuse, name, [&] { model(ids); });
    });
  }
}

TEST_CASE("C036: an optimizer that has stepped before wrapping throws at its next step") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1));
    model(stack_input(rank.rank(), 0)).square().mean().backward();
    adam.step();
    adam.zero_grad();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model(stack_input(rank.rank(), 1)).square().mean().backward();
    bool threw = false;
    try {
      adam.step();
    } catch (const std::exception&) {
      threw = true;
    }
    check(threw, "states of whole parameters must not be used with shards");
  });
}

TEST_CASE("C036: an optimizer of Convoy that has stepped before wrapping names the cause") {
  const std::vector<MakeOptimizer> makers = {
      [](std::vector<at::Tensor> all) { return std::make_unique<optim::AdamW>(std::move(all)); },
      [](std::vector<at::Tensor> all) {
        return std::make_unique<optim::SGD>(std::move(all),
                                            optim::SGDOptions{.lr = 0.125, .momentum = 0.5});
      }};
  for (const MakeOptimizer& make : makers) {
    ranks(2, [&](Rank& rank) {
      Scale model(std::vector<std::int64_t>{64, 3});  // Each rank has a part.
      const auto optimizer = make(model->parameters());
      model(1.0).backward();
      optimizer->step();
      optimizer->zero_grad();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      const auto before = model->weight.detach().clone();
      model(2.0).backward();
      check_throws(ErrorKind::kInvalidArgument, "has stepped before the model was sharded",
                   [&] { optimizer->step(); });
      check_same_bits(model->weight.detach(), before, "nothing is stepped");
      optimizer->state().clear();  // What the message says.
      optimizer->step();
      check(!same_bits(model->weight.detach(), before), "stepped");
    });
  }
}

TEST_CASE("two steps, and an average kept beside them, in one write window") {
  for (const bool shared : {true, false}) {
    StateDict expected;
    const auto train = [](Stack& model, const auto& backward) {
      const auto parameters = model->parameters();
      torch::optim::SGD first(parameters, torch::optim::SGDOptions(0.125));
      torch::optim::SGD second(parameters, torch::optim::SGDOptions(0.5));
      for (int step = 0; step < 3; ++step) {
        backward(step);
        first.step();
        second.step();
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.mul_(0.5);
        for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
      }
    };
    {
      Stack model = make_seeded_stack();
      train(model, [&](int step) {
        mean_gradients(model->parameters(), 3, [&](int rank) {
          model(stack_input(rank, step)).square().mean().backward();
        });
      });
      expected = plain_state(model);
    }
    ranks(3, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      train(model,
            [&](int step) { model(stack_input(rank.rank(), step)).square().mean().backward(); });
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
    });
  }
}

TEST_CASE("a view of a full parameter that is read after the unit was given up reads zeros") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    const auto body = model->body;
    torch::Tensor kept;
    model->body = [&](StackImpl& self, torch::Tensor x) {
      x = body(self, x);
      kept = self.head->weight.detach();
      check(kept.abs().sum().item<float>() > 0, "full inside of forward");
      return x;
    };
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
    const torch::NoGradGuard no_grad;
    model(stack_input(rank.rank(), 0));
    check_equal(kept.abs().sum().item<float>(), 0.0F, "a stray read");
  });
}

}  // namespace convoy
