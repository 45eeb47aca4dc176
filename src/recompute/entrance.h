// Where the gradients of a recomputed graph end: at its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace convoy::recompute {

/// Inputs of a recomputation, cut off from the graph of the forward, that catch their gradients.
/// They are no leaves: a leaf's accumulator copies gradients into another layout, with which the
/// next product may round differently from the plain run, and refuses changes in place.
struct Entrance {
  std::vector<at::Tensor> inputs;
  /// By input: its gradient once backward has run; undefined where there is none.
  std::shared_ptr<std::vector<at::Tensor>> gradients;
};

/// `wants_gradient` tells which inputs are to catch one. Gradients must be on.
Entrance enter(const std::vector<at::Tensor>& inputs, const std::vector<bool>& wants_gradient);

}  // namespace convoy::recompute
