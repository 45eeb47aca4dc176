// Values of a reduction that stay where they are, because no other rank reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace convoy {

/// A range of elements of a flat tensor.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const noexcept { return begin >= end; }
  std::int64_t numel() const noexcept { return empty() ? 0 : end - begin; }
};

/// This rank's values of elements [begin, begin + values.numel()) of the tensor that is reduced:
/// they are read from `values`, and what the tensor holds there does not matter. 1-D, contiguous,
/// of the tensor's dtype, unchanged until the operation is complete, which then lets go of it.
struct OwnPiece {
  std::int64_t begin = 0;
  at::Tensor values;
};

/// In ascending order and apart.
using OwnValues = std::vector<OwnPiece>;

/// Copies `values` to elements [begin, begin + values.numel()) of `target`, both 1-D, contiguous
/// and of one dtype, but for those in `own`: these are returned as a view of `values`. Its `values`
/// is undefined where there are none.
OwnPiece copy_but_own(const at::Tensor& target, std::int64_t begin, const at::Tensor& values,
                      ElementRange own);

/// Whether `values`, a dense tensor, is the only way to its memory, so that nobody but the caller
/// can change it: one handle, and one tensor over the storage beside the base of a view, which only
/// the view holds. The gradient of a Linear's weight is such a view, made by a transpose.
bool is_sole_holder(const at::Tensor& values);

}  // namespace convoy
