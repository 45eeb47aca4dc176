// The leaves of one unit over its flat buffers: each a single tensor that shows its slice or all.
#pragma once

#include "autograd_access.h"
#include "convoy/flat/layout.h"
#include "convoy/flat/shard_span.h"
#include "unit_plan.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// Note [One leaf, two states]
/// A parameter stays the same TensorImpl for ever; set_data points it at this rank's slice, which
/// is what the optimizer sees, or at its place in the full buffer, which is what forward and
/// backward see. The address of the full buffer never changes, so a view that autograd saved
/// (weight.t()) is right whenever the buffer is filled. The accumulator is taken in the full state,
/// because it keeps the shape it was made with, is held here, because the leaf refers to it weakly,
/// and is put back after every set_data. Thread rule: the thread that runs forward or backward, one
/// at a time.
class FlatParam {
 public:
  struct Leaf {
    std::string name;
    at::Tensor tensor;
    std::vector<std::int64_t> full_sizes;
    ParameterPiece piece;
    at::Tensor full_view;   ///< In the full buffer, full shape.
    at::Tensor shard_view;  ///< In this rank's slice, shape piece.sizes.
    NodePtr accumulator;    ///< Null while the parameter has never needed a gradient.
  };

  FlatParam(const PlannedUnit& unit, int rank, int world);

  const FlatLayout& layout() const noexcept { return layout_; }
  const std::vector<Leaf>& leaves() const noexcept { return leaves_; }

  /// Gives the unit its buffers: `full` has layout().total_numel() elements, `shard` slice_numel.
  void attach(const at::Tensor& full, const at::Tensor& shard);

  /// Points every leaf at its slice, or at its place in the full buffer.
  void show_shard();
  void show_full();
  /// Throws kMisuse naming the first leaf that is no longer where it was pointed to, which is what
  /// to(), torch::load and set_data on a leaf do.
  void require_untouched() const;

  /// Takes the accumulator of every trainable leaf that has none yet and calls
  /// `hook(index, accumulator)` for it. The leaves must show all.
  void take_accumulators(const std::function<void(std::size_t, Node&)>& hook);

  /// Appends what this rank holds.
  void append_spans(std::vector<ShardSpan>& spans) const;

 private:
  void show(bool full);

  FlatLayout layout_;
  std::vector<Leaf> leaves_;
  bool shows_full_ = false;
};

}  // namespace convoy::fsdp
