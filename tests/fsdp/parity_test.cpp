// Sharded training gives the bits of one process that adds the ranks' gradients in rank order.
#include "harness.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// Rows of 13, 11 and 17 elements have a common multiple that no small unit is worth.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    a = register_module("a", torch::nn::Linear(13, 11));
    b = register_module("b", torch::nn::Linear(11, 17));
    c = register_module("c", torch::nn::Linear(17, 13));
  }
  torch::Tensor forward(torch::Tensor x) { return c(torch::tanh(b(torch::tanh(a(x))))) + x; }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};
using Odd = Unit<OddImpl>;

torch::Tensor rank_input(int rank, int step, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank * 977 + step));
  return torch::randn(sizes, generator);
}

template <typename Holder>
Training<Holder> input_training(at::IntArrayRef sizes, int steps = 4) {
  return {.make =
              [] {
                Holder model;
                seed_parameters(*model, 11);
                return model;
              },
          .loss = [sizes = sizes.vec()](
                      Holder& model, int rank,
                      int step) { return model(rank_input(rank, step, sizes)).square().mean(); },
          .optimizer = exact_sgd,
          .steps = steps};
}

}  // namespace

TEST_CASE("FSDP equals one process bit for bit in worlds 1 to 5, both gathers") {
  for (int world = 1; world <= 5; ++world) check_parity(tiny_training(), world);
}

TEST_CASE("FSDP equals one process over 20 steps") {
  check_parity(tiny_training({}, 20), 3, {.wrap = wrap_units_of<TinyBlock>()});
}

TEST_CASE("how a model is divided does not change a bit") {
  const auto training = tiny_training();
  const StateDict expected = train_alone(training, 3);
  const WrapPolicy policies[] = {wrap_every_unit(), wrap_units_named("blocks.1"),
                                 wrap_units_named("blocks.0") | wrap_units_named("*.2"),
                                 wrap_units_of<TinyBlockImpl>()};
  for (const WrapPolicy& policy : policies) {
    for (const bool shared : {true, false}) {
      for (const bool reshard : {true, false}) {
        check_same_state(
            train_sharded(
                training, 3,
                {.wrap = policy, .reshard_after_forward = reshard, .shared_gather = shared}),
            expected, policy.rules()[0].description);
      }
    }
  }
}

TEST_CASE("slices cut at elements give the same bits") {
  ranks(2, [](Rank& rank) {
    Odd model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    check(!fsdp.units()[0].cut_at_rows, "rows of 13, 11 and 17 elements are cut at elements");
  });
  check_parity(input_training<Odd>({4, 13}), 3);
}

TEST_CASE("a sequence of units needs no root unit") {
  using torch::nn::Sequential;
  const Training<Sequential> training{
      .make =
          [] {
            Sequential model{Odd{}, Odd{}, torch::nn::ReLU{}, Odd{}};
            seed_parameters(*model, 5);
            return model;
          },
      .loss =
          [](Sequential& model, int rank, int step) {
            return model->forward(rank_input(rank, step, {3, 13})).square().sum();
          },
      .optimizer = exact_sgd,
      .steps = 3};
  check_parity(training, 2);
}

TEST_CASE("stock optimizers work sharded to 1e-6") {
  const std::pair<const char*, MakeOptimizer> optimizers[] = {
      {"Adam",
       [](auto p) {
         return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2));
       }},
      {"AdamW",
       [](auto p) {
         return std::make_unique<torch::optim::AdamW>(
             p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
       }},
      {"RMSprop",
       [](auto p) {
         return std::make_unique<torch::optim::RMSprop>(
             p, torch::optim::RMSpropOptions(1e-3).momentum(0.9));
       }},
      {"SGD",
       [](auto p) {
         return std::make_unique<torch::optim::SGD>(
             p, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
       }},
      {"Adagrad",
       [](auto p) {
         return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2));
       }},
  };
  for (const auto& [name, make] : optimizers) {
    auto training = tiny_training();
    training.optimizer = make;
    const StateDict expected = train_alone(training, 3);
    for (const bool shared : {true, false}) {
      check_close_state(train_sharded(training, 3, {.shared_gather = shared}), expected, 1e-6,
                        concat(name, ", ", path_name(shared)));
    }
  }
}

TEST_CASE("C036: an optimizer built before wrapping steps the shards") {
  const auto training = tiny_training();
  const StateDict expected = train_alone(training, 2);
  ranks(2, [&](Rank& rank) {
    TinyGpt model = training.make();
    const auto optimizer = exact_sgd(model->parameters());
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    for (int step = 0; step < training.steps; ++step) {
      training.loss(model, rank.rank(), step).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    const StateDict state = full_state_dict(fsdp);
    if (rank.rank() == 0) check_same_state(state, expected);
  });
}

TEST_CASE("float64 models are sharded too") {
  auto training = input_training<Odd>({4, 13});
  training.make = [] {
    Odd model;
    seed_parameters(*model, 11);
    model->to(torch::kDouble);
    return model;
  };
  training.loss = [](Odd& model, int rank, int step) {
    return model(rank_input(rank, step, {4, 13}).to(torch::kDouble)).square().mean();
  };
  check_parity(training, 3);
}

TEST_CASE("losses and gradients of every step agree, not only the end") {
  const auto training = tiny_training();
  const int world = 4;
  std::vector<std::vector<at::Tensor>> gradients;  // by step and parameter
  {
    TinyGpt model = training.make();
    const auto parameters = model->parameters();
    const auto optimizer = training.optimizer(parameters);
    for (int step = 0; step < training.steps; ++step) {
      mean_gradients(parameters, world,
                     [&](int rank) { training.loss(model, rank, step).backward(); });
      gradients.emplace_back();
      for (const auto& parameter : parameters) gradients.back().push_back(parameter.grad().clone());
      optimizer->step();
    }
  }
  for (const bool shared : {true, false}) {
    ranks(world, [&](Rank& rank) {
      TinyGpt model = training.make();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto optimizer = training.optimizer(model->parameters());
      for (int step = 0; step < training.steps; ++step) {
        training.loss(model, rank.rank(), step).backward();
        std::size_t i = 0;
        for (const ShardSpan& span : fsdp.shard_spans()) {
          const auto whole = gradients[static_cast<std::size_t>(step)][i++];
          check(span.leaf.grad().sizes() == span.leaf.sizes(), "a gradient has its leaf's shape");
          check_same_bits(span.leaf.grad().flatten(),
                          whole.flatten().narrow(0, span.begin, span.numel), span.name);
        }
        optimizer->step();
        optimizer->zero_grad();
      }
    });
  }
}

}  // namespace convoy
