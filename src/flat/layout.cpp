// Lays the parameters of a unit end to end and cuts the buffer into equal slices.
#include "convoy/flat/layout.h"

#include "base/rounding.h"
#include "convoy/base/check.h"
#include "convoy/flat/shard_span.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace convoy {
namespace {

// Beyond this a common multiple of row lengths is not worth computing: it would pad any unit
// absurdly, and the products below must not overflow.
constexpr std::int64_t kHugeMultiple = std::int64_t{1} << 40;

// The least common multiple, or kHugeMultiple once it gets there.
std::int64_t capped_lcm(std::int64_t a, std::int64_t b) {
  if (a >= kHugeMultiple || b >= kHugeMultiple) return kHugeMultiple;
  const std::int64_t reduced = a / std::gcd(a, b);
  return reduced > kHugeMultiple / b ? kHugeMultiple : reduced * b;
}

ParameterPlace measure(const ParameterShape& shape) {
  ParameterPlace place;
  place.numel = 1;
  for (const std::int64_t size : shape.sizes) {
    CONVOY_REQUIRE(size >= 0, kInvalidArgument, "parameter '", shape.name,
                   "' has the negative size ", size);
    place.numel *= size;
  }
  if (!shape.sizes.empty() && place.numel > 0) place.row_numel = place.numel / shape.sizes[0];
  return place;
}

// Places the parameters so that each start is a multiple of its unit of cutting, and sets the slice
// length. False if a common multiple got too large to be useful.
bool place_all(FlatLayout& layout, CutRule cut) {
  std::int64_t cursor = 0;
  std::int64_t slice_multiple = kShardAlignment;
  for (ParameterPlace& place : layout.places) {
    const std::int64_t row = cut == CutRule::kRows ? place.row_numel : 1;
    const std::int64_t multiple = capped_lcm(row, kShardAlignment);
    slice_multiple = capped_lcm(slice_multiple, multiple);
    if (slice_multiple >= kHugeMultiple) return false;
    if (place.numel > 0) cursor = round_up(cursor, multiple);
    place.start = round_up(cursor, kShardAlignment);
    cursor += place.numel;
  }
  const std::int64_t share = (cursor + layout.world - 1) / layout.world;
  layout.slice_numel = round_up(share, slice_multiple);
  layout.cut = cut;
  return true;
}

}  // namespace

FlatLayout plan_layout(std::span<const ParameterShape> parameters, int world, LayoutLimits limits) {
  CONVOY_REQUIRE(world >= 1, kInvalidArgument, "a layout needs at least one rank, not ", world);
  FlatLayout layout;
  layout.world = world;
  layout.shapes.assign(parameters.begin(), parameters.end());
  for (const ParameterShape& shape : parameters) {
    layout.places.push_back(measure(shape));
    layout.parameter_numel += layout.places.back().numel;
  }
  if (place_all(layout, CutRule::kRows)) {
    const std::int64_t padding = layout.padding_numel();
    const bool cheap = padding <= limits.free_padding_numel ||
                       static_cast<double>(padding) <=
                           limits.max_padding_share * static_cast<double>(layout.parameter_numel);
    if (cheap) return layout;
  }
  place_all(layout, CutRule::kElements);
  return layout;
}

ParameterPiece piece_of(const FlatLayout& layout, std::size_t index, int rank) {
  CONVOY_CHECK(index < layout.places.size() && rank >= 0 && rank < layout.world, "piece ", index,
               " of rank ", rank);
  const ParameterPlace& place = layout.places[index];
  const std::vector<std::int64_t>& sizes = layout.shapes[index].sizes;
  const std::int64_t slice_begin = layout.slice_numel * rank;
  const std::int64_t begin = std::clamp(slice_begin, place.start, place.start + place.numel);
  const std::int64_t end =
      std::clamp(slice_begin + layout.slice_numel, place.start, place.start + place.numel);

  ParameterPiece piece;
  piece.begin = begin - place.start;
  piece.numel = end - begin;
  piece.slice_offset = piece.numel > 0 ? begin - slice_begin : 0;
  if (place.numel == 0) {
    piece.begin = 0;
    piece.sizes = sizes;  // nothing to cut; a shape with a zero keeps its meaning
  } else if (layout.cut == CutRule::kElements || sizes.empty()) {
    piece.sizes = {piece.numel};
  } else {
    piece.sizes = sizes;
    piece.sizes[0] = piece.numel / place.row_numel;
  }
  return piece;
}

}  // namespace convoy
