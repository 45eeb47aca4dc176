// AdamW on Convoy's own kernel: the same bits however the parameters are cut.
#pragma once

#include "convoy/optim/param_group.h"

#include <torch/optim/adamw.h>

#include <concepts>
#include <utility>
#include <vector>

namespace convoy::optim {

/// Defaults are PyTorch's. `AdamW adam(model->parameters(), {.lr = 3e-4})`. Where the fluent form
/// is wanted, torch's own type does: `torch::optim::AdamWOptions(3e-4).betas({0.9, 0.95})`.
struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
};

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2, as in PyTorch). A
/// torch::optim::AdamW in everything but the arithmetic of step(): groups, schedulers, state types
/// and archives are torch's, so either loads what the other saved.
///
/// step() updates float32 and float64 CPU parameters in one pass over memory, on torch's intra-op
/// threads. The result of an element depends on that element's values only, to the bit: not on its
/// place, the length of its tensor or the number of threads. Gradients of another dtype or layout
/// are converted first. A parameter without a gradient is left alone; an empty one gets no state; a
/// tensor listed twice in one group is stepped once. Every stepped parameter's version is raised,
/// so that a backward through an older graph fails instead of reading new values.
///
/// Errors: kInvalidArgument for an option out of range, a parameter of another dtype or device or
/// in two groups, a sparse gradient, a gradient or a loaded state of another shape; nothing has
/// been changed then.
///
/// Thread rule: one thread at a time.
class AdamW : public torch::optim::AdamW {
 public:
  explicit AdamW(std::vector<at::Tensor> params, AdamWOptions options = {});
  explicit AdamW(std::vector<ParamGroup> groups, AdamWOptions options = {});

  template <std::same_as<torch::optim::AdamWOptions> TorchOptions>
  AdamW(std::vector<at::Tensor> params, TorchOptions options)
      : AdamW(FromTorch{}, {torch::optim::OptimizerParamGroup(std::move(params))}, options) {}
  /// Group options follow torch's rule: a value equal to torch's default is taken from `options`.
  template <std::same_as<torch::optim::AdamWOptions> TorchOptions>
  AdamW(std::vector<torch::optim::OptimizerParamGroup> groups, TorchOptions options)
      : AdamW(FromTorch{}, std::move(groups), options) {}

  /// Steps every parameter that has a gradient. Returns the closure's loss, or an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  struct FromTorch {};
  AdamW(FromTorch, std::vector<torch::optim::OptimizerParamGroup> groups,
        const torch::optim::AdamWOptions& options);
};

}  // namespace convoy::optim
