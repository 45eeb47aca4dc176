// What a step works on: the parameters that have gradients, checked and brought to one layout.
#pragma once

#include "convoy/optim/param_group.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

namespace convoy::optim {

/// One parameter that this step updates. `values` and `gradient` have the same dtype and strides
/// and are dense in memory, so that an element is at the same position in both. They are the
/// parameter's own memory where that is dense, else copies.
struct SteppedLeaf {
  at::Tensor param;
  at::Tensor values;
  at::Tensor gradient;
  const char* optimizer;
  std::size_t group;
  std::size_t index;  ///< In its group.

  /// "AdamW, parameter 3 of group 0 ([4, 5])", for errors.
  std::string place() const;
};

/// The leaves of all groups that have a gradient; empty ones included. Changes nothing.
/// Errors: kInvalidArgument as AdamW documents them.
std::vector<SteppedLeaf> collect_leaves(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const char* optimizer);

/// A state tensor that lies in memory as leaf.values does: `state` itself, or a copy if a loaded
/// one has other strides, or zeros if it is undefined. Error: kInvalidArgument if it has another
/// shape, dtype or device.
at::Tensor matching_state(const SteppedLeaf& leaf, const at::Tensor& state, const char* name);

/// Puts the new values on the parameters, whose versions it raises: also those of empty ones, whose
/// old graphs are as stale as the others'.
void finish_leaves(const std::vector<SteppedLeaf>& leaves);

/// The loss of `closure` computed with gradients enabled, or an undefined tensor.
at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure);

/// The same groups, after checking that every parameter is a defined leaf. Error: kInvalidArgument.
const std::vector<torch::optim::OptimizerParamGroup>& checked_groups(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const char* optimizer);

/// The groups' parameters as torch groups without options of their own, checked as above.
std::vector<torch::optim::OptimizerParamGroup> bare_groups(const std::vector<ParamGroup>& groups,
                                                           const char* optimizer);

}  // namespace convoy::optim
