// Where the parameters of one unit lie in its flat buffer, and how the ranks cut it. Pure
// arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

/// A parameter as a layout sees it.
struct ParameterShape {
  std::string name;
  std::vector<std::int64_t> sizes;  ///< Empty for a scalar; may hold zeros.
};

/// How the slices of a flat buffer are cut.
enum class CutRule {
  /// Between rows of dimension 0, so that a slice of [R, ...] is [rows here, ...].
  kRows,
  /// Between elements, so that every slice is 1-D: where whole rows would cost too much padding.
  kElements,
};

/// When whole rows cost too much: more than both bounds.
struct LayoutLimits {
  double max_padding_share = 1.0 / 8.0;         ///< Of the unit's elements.
  std::int64_t free_padding_numel = 16 * 1024;  ///< Always allowed: 64 KiB of float32.
};

/// The place of one parameter. All counts are elements.
struct ParameterPlace {
  std::int64_t start = 0;  ///< In the flat buffer.
  std::int64_t numel = 0;
  /// Elements of one row of dimension 0; 1 for scalars, vectors and empty parameters.
  std::int64_t row_numel = 1;
};

/// The flat buffer of one unit: `world` equal slices, rank r holds [r, r + 1) x slice_numel.
/// Promises: every start, and every cut inside a parameter counted from its start, is a multiple of
/// kShardAlignment (shard_span.h) and, under kRows, of the parameter's row_numel. Everything that
/// no parameter covers is padding.
struct FlatLayout {
  int world = 1;
  CutRule cut = CutRule::kRows;
  std::int64_t slice_numel = 0;
  std::int64_t parameter_numel = 0;  ///< Sum over the parameters.
  std::vector<ParameterPlace> places;
  std::vector<ParameterShape> shapes;

  std::int64_t total_numel() const { return slice_numel * world; }
  std::int64_t padding_numel() const { return total_numel() - parameter_numel; }
};

/// The part of one parameter that lies in one rank's slice.
struct ParameterPiece {
  std::int64_t begin = 0;  ///< First element, counted in the parameter; 0 or its numel if none.
  std::int64_t numel = 0;
  std::int64_t slice_offset = 0;    ///< Where that element lies in the slice (0 when numel is 0).
  std::vector<std::int64_t> sizes;  ///< Shape of the leaf: [rows here, ...], or [numel] where cut
                                    ///< at elements or a scalar.
};

/// Lays parameters end to end in the given order for `world` ranks. An empty list gives an empty
/// layout. Error: kInvalidArgument for a negative size or world < 1.
FlatLayout plan_layout(std::span<const ParameterShape> parameters, int world,
                       LayoutLimits limits = {});

/// What rank `rank` holds of parameter `index`.
ParameterPiece piece_of(const FlatLayout& layout, std::size_t index, int rank);

}  // namespace convoy
