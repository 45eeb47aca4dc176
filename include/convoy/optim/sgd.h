// Stochastic gradient descent on Convoy's own kernel: the same bits however the parameters are cut.
#pragma once

#include "convoy/optim/param_group.h"

#include <torch/optim/sgd.h>

#include <concepts>
#include <utility>
#include <vector>

namespace convoy::optim {

/// Defaults are PyTorch's. `SGD sgd(model->parameters(), {.lr = 0.1, .momentum = 0.9})`. Where the
/// fluent form is wanted, torch's own type does: `torch::optim::SGDOptions(0.1).momentum(0.9)`.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< Added to the gradient (L2), not decoupled.
  bool nesterov = false;    ///< Needs a momentum and no dampening.
};

/// SGD with momentum, Nesterov momentum and weight decay, with PyTorch's meaning of each (the first
/// step takes the gradient itself as momentum buffer). A torch::optim::SGD in everything but the
/// arithmetic of step(). What AdamW says about bits, threads, layouts, empty and absent gradients,
/// versions and errors holds here too.
/// Thread rule: one thread at a time.
class SGD : public torch::optim::SGD {
 public:
  explicit SGD(std::vector<at::Tensor> params, SGDOptions options = {});
  explicit SGD(std::vector<ParamGroup> groups, SGDOptions options = {});

  template <std::same_as<torch::optim::SGDOptions> TorchOptions>
  SGD(std::vector<at::Tensor> params, TorchOptions options)
      : SGD(FromTorch{}, {torch::optim::OptimizerParamGroup(std::move(params))}, options) {}
  /// Group options follow torch's rule: a value equal to torch's default is taken from `options`.
  template <std::same_as<torch::optim::SGDOptions> TorchOptions>
  SGD(std::vector<torch::optim::OptimizerParamGroup> groups, TorchOptions options)
      : SGD(FromTorch{}, std::move(groups), options) {}

  /// Steps every parameter that has a gradient. Returns the closure's loss, or an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  struct FromTorch {};
  SGD(FromTorch, std::vector<torch::optim::OptimizerParamGroup> groups,
      const torch::optim::SGDOptions& options);
};

}  // namespace convoy::optim
