// The part of checkpoint() that knows no types: a forward without a graph, then a node that runs it
// again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace convoy::recompute {

struct CheckpointOptions {
  /// The recomputation draws the random numbers of the forward, from the default generators of the
  /// CPU and of the devices where the inputs lie, and leaves the generators as it found them.
  /// Without it dropout has another mask in the recomputation, and gradients are wrong; to be
  /// switched off where the function draws nothing, or from a generator of its own.
  bool preserve_rng_state = true;
};

namespace detail {

/// Tensors in, tensors out: called again in each backward.
using Segment = std::function<std::vector<at::Tensor>(std::vector<at::Tensor> inputs)>;

/// A forward that is going on: until finish() or destruction this thread records no graph.
class SegmentForward {
 public:
  /// `inputs` are defined tensors.
  SegmentForward(std::vector<at::Tensor> inputs, const CheckpointOptions& options);
  ~SegmentForward();
  SegmentForward(const SegmentForward&) = delete;
  SegmentForward& operator=(const SegmentForward&) = delete;

  /// Ends the forward. Returns what `outputs` (defined tensors) hold as outputs of a node that runs
  /// `segment` again in backward. Error: kMisuse if an input was changed in place meanwhile.
  std::vector<at::Tensor> finish(const std::vector<at::Tensor>& outputs, Segment segment);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

}  // namespace convoy::recompute

namespace convoy {
using recompute::CheckpointOptions;
}  // namespace convoy
