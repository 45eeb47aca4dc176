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

/// How the parameters of a unit lie over `world` ranks.
FlatLayout layout_of(const PlannedUnit& unit, int world);

/// Note [One leaf, two states]
/// A parameter stays the same TensorImpl for ever; set_data points it at this rank's slice, which
/// is what the optimizer sees, or at its place in a full buffer, which is what forward and backward
/// see, in mixed precision in another dtype than the slice. The address of the full buffer never
/// changes, so a view that autograd saved (weight.t()) is right whenever the buffer is filled. The
/// accumulator is taken in the full state, because it keeps the shape and dtype it was made with,
/// is held here, because the leaf refers to it weakly, and is put back after every set_data. Thread
/// rule: the thread that runs forward or backward, one at a time.
class FlatParam {
 public:
  /// What the leaves show. kMaster differs from kCompute in mixed precision only: all, in the
  /// leaves' own dtype, for reading parameters.
  enum class Shows { kShard, kCompute, kMaster };

  struct Leaf {
    std::string name;
    at::Tensor tensor;
    std::vector<std::int64_t> full_sizes;
    ParameterPiece piece;
    at::Tensor compute_view;  ///< What forward and backward see, full shape.
    at::Tensor master_view;   ///< In the full buffer of the leaf's own dtype, full shape.
    at::Tensor shard_view;    ///< In this rank's slice, shape piece.sizes.
    NodePtr accumulator;      ///< Null while the parameter has never needed a gradient.
  };

  FlatParam(const PlannedUnit& unit, int rank, int world);

  const FlatLayout& layout() const noexcept { return layout_; }
  const std::vector<Leaf>& leaves() const noexcept { return leaves_; }

  /// Gives the unit its buffers: `master` and `compute` have layout().total_numel() elements (and
  /// are one tensor without mixed precision), `shard` slice_numel. Leaves that are `kept` compute
  /// in `master`.
  void attach(const at::Tensor& master, const at::Tensor& compute, const at::Tensor& shard,
              const std::vector<bool>& kept);

  /// Points every leaf at its place in one of the buffers.
  void show(Shows what);
  Shows shows() const noexcept { return shows_; }
  /// Points every leaf at its place in `flat`, a copy of the full buffer in the leaves' dtype,
  /// until show() is called: for reading and writing parameters outside of forward and backward.
  void show_copy(const at::Tensor& flat);
  /// Throws kMisuse naming the first leaf that is no longer where it was pointed to, which is what
  /// to(), torch::load and set_data on a leaf do.
  void require_untouched() const;

  /// Takes the accumulator of every trainable leaf that has none yet and calls
  /// `hook(index, accumulator)` for it. The leaves must show kCompute.
  void take_accumulators(const std::function<void(std::size_t, Node&)>& hook);

  /// Appends what this rank holds.
  void append_spans(std::vector<ShardSpan>& spans) const;

 private:
  static const at::Tensor& view_of(const Leaf& leaf, Shows what);

  FlatLayout layout_;
  std::vector<Leaf> leaves_;
  Shows shows_ = Shows::kShard;
};

}  // namespace convoy::fsdp
