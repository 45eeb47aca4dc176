// A set of parameters that an optimizer steps with values of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace convoy::optim {

/// Parameters with a learning rate or weight decay that differs from the optimizer's. What is
/// absent is taken from the optimizer's options, also where a given value happens to equal a
/// default of torch (torch's own groups cannot tell these apart).
/// `{.params = biases, .weight_decay = 0.0}`
struct ParamGroup {
  std::vector<at::Tensor> params;
  std::optional<double> lr = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

}  // namespace convoy::optim
