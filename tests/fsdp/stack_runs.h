// The stack of layers of modules.h trained alone and sharded, with any body and any backward.
#pragma once

#include "harness.h"
#include "modules.h"

#include <functional>

namespace convoy::test {

inline torch::Tensor stack_input(int rank, int step, std::int64_t rows = 3) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(31 * rank + step + 1));
  return torch::randn({rows, 6}, generator);
}

inline Stack make_seeded_stack() {
  Stack model(3);
  seed_parameters(*model, 23);
  return model;
}

using Body = std::function<torch::Tensor(StackImpl&, torch::Tensor)>;
using Backward = std::function<void(Stack&, int rank, int step)>;

// Trains three steps with `backward` alone and sharded and compares every bit, or to 1e-6.
inline void compare_runs(const Backward& backward, int world = 2, double tolerance = 0.0,
                         fsdp::Options options = {}) {
  StateDict expected;
  {
    Stack model = make_seeded_stack();
    const auto parameters = model->parameters();
    const auto optimizer = exact_sgd(parameters);
    for (int step = 0; step < 3; ++step) {
      mean_gradients(parameters, world, [&](int rank) { backward(model, rank, step); });
      optimizer->step();
    }
    expected = plain_state(model);
  }
  for (const bool shared : {true, false}) {
    options.shared_gather = shared;
    ranks(world, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
      const auto optimizer = exact_sgd(model->parameters());
      for (int step = 0; step < 3; ++step) {
        backward(model, rank.rank(), step);
        for (const auto& unit : fsdp.units()) {
          check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " after backward");
        }
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() != 0) return;
      if (tolerance == 0.0) check_same_state(state, expected, path_name(shared));
      if (tolerance > 0.0) check_close_state(state, expected, tolerance, path_name(shared));
    });
  }
}

inline void compare_body(const Body& body, double tolerance = 0.0, int world = 2) {
  compare_runs(
      [&](Stack& model, int rank, int step) {
        model->body = body;
        model(stack_input(rank, step).requires_grad_(true)).square().mean().backward();
      },
      world, tolerance);
}

template <typename Holder>
Training<Holder> training_of() {
  return {.make =
              [] {
                Holder model;
                seed_parameters(*model, 3);
                return model;
              },
          .loss = [](Holder& model, int rank,
                     int step) { return model(stack_input(rank, step)).square().mean(); },
          .optimizer = exact_sgd,
          .steps = 3};
}

}  // namespace convoy::test
