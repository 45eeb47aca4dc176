// Mixed precision without FSDP: one process that casts the weights, computes, and widens gradients.
#pragma once

#include "harness.h"
#include "stack_runs.h"

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace convoy::test {

/// As Training, with inputs apart from the forward, so that the reference can cast them itself.
template <typename Holder>
struct MixedTraining {
  std::function<Holder()> make;
  std::function<at::Tensor(int rank, int step)> input;
  std::function<at::Tensor(const at::Tensor& output, int rank, int step)> loss;
  int steps = 3;
};

/// A second model in which everything but norms is in `dtype`.
template <typename Holder>
Holder cast_model(const Holder& master, Holder model, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (const auto& item : model->named_modules()) {
    if (dynamic_cast<torch::nn::LayerNormImpl*>(item.value().get()) != nullptr) continue;
    for (auto& parameter : item.value()->parameters(/*recurse=*/false)) {
      parameter.set_data(parameter.to(dtype));
    }
  }
  const auto from = master->parameters();
  const auto to = model->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  return model;
}

/// Sums in float32 in rank order, divides once, and rounds once to `reduce`.
class GradientSums {
 public:
  explicit GradientSums(std::size_t count) : sums_(count) {}

  void add(std::size_t index, const at::Tensor& gradient, at::ScalarType reduce) {
    if (!gradient.defined()) return;
    const at::Tensor value = gradient.to(reduce).to(at::kFloat);
    sums_[index] = sums_[index].defined() ? sums_[index] + value : value.clone();
  }
  at::Tensor mean(std::size_t index, int world, at::ScalarType reduce) const {
    if (!sums_[index].defined()) return {};
    return (sums_[index] / world).to(reduce).to(at::kFloat);
  }

 private:
  std::vector<at::Tensor> sums_;
};

template <typename Holder>
StateDict train_alone_mixed(const MixedTraining<Holder>& training, int world, at::ScalarType dtype,
                            at::ScalarType reduce = at::kFloat) {
  at::set_num_threads(1);
  Holder master = training.make();
  const auto parameters = master->parameters();
  const auto optimizer = exact_sgd(parameters);
  for (int step = 0; step < training.steps; ++step) {
    Holder model = cast_model(master, training.make(), dtype);
    const auto cast = model->parameters();
    GradientSums sums(cast.size());
    for (int rank = 0; rank < world; ++rank) {
      model->zero_grad();
      at::Tensor input = training.input(rank, step);
      if (input.is_floating_point()) input = input.to(dtype);
      training.loss(model(input), rank, step).backward();
      for (std::size_t i = 0; i < cast.size(); ++i) sums.add(i, cast[i].grad(), reduce);
    }
    for (std::size_t i = 0; i < cast.size(); ++i) {
      parameters[i].mutable_grad() = sums.mean(i, world, reduce);
    }
    optimizer->step();
  }
  return plain_state(master);
}

template <typename Holder>
StateDict train_sharded_mixed(const MixedTraining<Holder>& training, int world,
                              const fsdp::Options& options) {
  const Training<Holder> plain{.make = training.make,
                               .loss =
                                   [&](Holder& model, int rank, int step) {
                                     return training.loss(model(training.input(rank, step)), rank,
                                                          step);
                                   },
                               .optimizer = exact_sgd,
                               .steps = training.steps};
  return train_sharded(plain, world, options);
}

/// Both gathers against the reference, every bit.
template <typename Holder>
void check_mixed_parity(const MixedTraining<Holder>& training, int world, fsdp::Options options) {
  const fsdp::MixedPrecision& mixed = options.mixed_precision;
  const StateDict expected = train_alone_mixed(training, world, mixed.param_dtype.value(),
                                               mixed.reduce_dtype.value_or(at::kFloat));
  for (const bool shared : {true, false}) {
    options.shared_gather = shared;
    check_same_state(train_sharded_mixed(training, world, options), expected,
                     concat("world ", world, ", ", path_name(shared)));
  }
}

/// Two blocks: low-precision products are slow on processors without instructions for them.
inline MixedTraining<TinyGpt> tiny_mixed(int steps = 3) {
  return {.make =
              [] {
                TinyGptConfig config;
                config.layers = 2;
                TinyGpt model(config);
                seed_parameters(*model, 7);
                return model;
              },
          .input = [](int rank, int step) { return tiny_batch(rank, step).tokens; },
          .loss =
              [](const at::Tensor& output, int rank, int step) {
                return tiny_loss(output.to(at::kFloat), tiny_batch(rank, step).targets);
              },
          .steps = steps};
}

inline MixedTraining<Stack> stack_mixed(int steps = 3) {
  return {.make = make_seeded_stack,
          .input = [](int rank, int step) { return stack_input(rank, step); },
          .loss = [](const at::Tensor& output, int, int) { return output.square().mean(); },
          .steps = steps};
}

}  // namespace convoy::test
