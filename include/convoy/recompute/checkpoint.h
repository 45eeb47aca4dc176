// checkpoint(): activation checkpointing, which saves memory by running forward again in backward.
// (Saving a model to disk is in convoy/checkpoint.)
#pragma once

#include "convoy/recompute/segment.h"
#include "convoy/recompute/tensor_slots.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::recompute {

namespace detail {

/// A function with its arguments, whose tensors are kept elsewhere.
template <typename Fn, typename... Inputs>
class Call {
 public:
  using Result = std::invoke_result_t<Fn&, Inputs...>;

  template <typename... Given>
  explicit Call(Fn fn, Given&&... inputs)
      : fn_(std::move(fn)), inputs_(std::forward<Given>(inputs)...) {}

  /// Moves the defined tensors out of the arguments.
  std::vector<at::Tensor> take_tensors() {
    std::vector<at::Tensor> tensors;
    for_each_slot(inputs_, [&](at::Tensor& slot) {
      is_defined_.push_back(slot.defined());
      if (slot.defined()) tensors.push_back(std::exchange(slot, at::Tensor()));
    });
    return tensors;
  }

  /// Calls the function with `tensors` in the places that take_tensors left empty.
  Result run(std::vector<at::Tensor> tensors) {
    std::tuple<Inputs...> inputs(inputs_);
    std::size_t slot_index = 0;
    std::size_t next = 0;
    for_each_slot(inputs, [&](at::Tensor& slot) {
      if (is_defined_[slot_index++]) slot = std::move(tensors[next++]);
    });
    return std::apply(
        [this](Inputs&... each) -> Result { return std::invoke(fn_, std::move(each)...); }, inputs);
  }

 private:
  Fn fn_;
  std::tuple<Inputs...> inputs_;
  std::vector<bool> is_defined_;
};

template <typename T>
std::vector<at::Tensor> defined_tensors(T& value) {
  std::vector<at::Tensor> tensors;
  for_each_slot(value, [&](at::Tensor& slot) {
    if (slot.defined()) tensors.push_back(slot);
  });
  return tensors;
}

/// True for what checkpoint() can return: a value in which every tensor can be replaced.
template <typename Result>
concept Replaceable = std::is_object_v<Result> && content_of<Result>()
<= Content::kTensors;

}  // namespace detail

/// Calls `fn(inputs...)` and returns its result, without keeping what its backward needs: backward
/// calls `fn` again, under the random numbers and the autocast state of the first time, and goes on
/// from there. Memory: the inputs instead of everything `fn` has saved; time: one more forward.
/// Results and gradients have the bits of the plain call (docs/activation_checkpointing.md says
/// where sums are ordered otherwise).
///
/// `fn` and the inputs are copied and live until the graph does; `fn` gets its own copies each time
/// (write std::ref to pass a reference on) and must do the same again. Inputs of any type:
/// gradients flow to the tensors that for_each_slot finds in them. The result is a tensor, or an
/// optional, tuple, pair, array, vector or map of tensors and plain values. Parameters used inside
/// get their gradients whether or not an input needs one. With gradients off, a plain call.
///
/// Errors: what `fn` throws; kMisuse if it changes an input in place. In backward kMisuse: other
/// results than in forward, a tensor with a graph that `fn` captured instead of taking it as input,
/// create_graph, and gradients towards chosen inputs (autograd::grad).
/// Thread rule: as any forward. Ranks that are threads of one process share torch's generators, so
/// with dropout run ranks as processes.
template <typename Fn, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Fn&& fn, Inputs&&... inputs) {
  using Call = detail::Call<std::decay_t<Fn>, std::decay_t<Inputs>...>;
  using Result = typename Call::Result;
  static_assert(detail::Replaceable<Result>,
                "checkpoint: the result must be a tensor, or an optional, tuple, pair, array, "
                "vector or map of tensors and numbers; for a type of your own define "
                "void visit_tensors(T&, const convoy::SlotVisitor&) beside it");
  static_assert((std::is_copy_constructible_v<std::decay_t<Inputs>> && ...),
                "checkpoint: inputs are copied, because the function is called again");
  static_assert(((detail::content_of<std::decay_t<Inputs>>() != detail::Content::kFixed) && ...),
                "checkpoint: give a std::vector of tensors, not a TensorList");
  auto call = std::make_shared<Call>(std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
  std::vector<at::Tensor> tensors = call->take_tensors();
  if (!at::GradMode::is_enabled()) return call->run(std::move(tensors));
  detail::SegmentForward forward(tensors, options);
  Result result = call->run(std::move(tensors));
  std::vector<at::Tensor> outputs =
      forward.finish(detail::defined_tensors(result), [call](std::vector<at::Tensor> again) {
        Result value = call->run(std::move(again));
        return detail::defined_tensors(value);
      });
  std::size_t next = 0;
  for_each_slot(result, [&](at::Tensor& slot) {
    if (slot.defined()) slot = std::move(outputs[next++]);
  });
  return result;
}

/// The same with the default options.
template <typename Fn, typename... Inputs>
requires(!std::same_as<std::decay_t<Fn>, CheckpointOptions>) auto checkpoint(Fn&& fn,
                                                                             Inputs&&... inputs) {
  return checkpoint(CheckpointOptions{}, std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
}

}  // namespace convoy::recompute

namespace convoy {
using recompute::checkpoint;
}  // namespace convoy
