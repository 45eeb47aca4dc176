// Flat layouts: the promises of layout.h on chosen and on generated parameter lists.
#include "convoy/flat/layout.h"

#include "convoy/base/check.h"
#include "convoy/flat/shard_span.h"
#include "support/catch.h"

#include <numeric>
#include <random>

namespace convoy {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<ParameterShape> shapes_of(const std::vector<Sizes>& sizes) {
  std::vector<ParameterShape> shapes;
  for (std::size_t i = 0; i < sizes.size(); ++i) shapes.push_back({concat("p", i), sizes[i]});
  return shapes;
}

std::int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// Throws with a text if any promise of the layout is broken; Catch's own macros are too slow to be
// used some hundred thousand times.
void verify(const FlatLayout& layout) {
  const auto demand = [&](bool condition, const char* promise) {
    if (!condition) {
      throw Error(ErrorKind::kInternal, concat("broken promise: ", promise, ", world ",
                                               layout.world, ", slice ", layout.slice_numel));
    }
  };
  const std::int64_t slice = layout.slice_numel;
  demand(slice % kShardAlignment == 0, "slice length is aligned");
  std::int64_t end_of_last = 0, covered = 0;
  for (std::size_t i = 0; i < layout.places.size(); ++i) {
    const ParameterPlace& place = layout.places[i];
    demand(place.numel == product(layout.shapes[i].sizes), "numel is the product of the sizes");
    demand(place.start >= end_of_last, "parameters do not overlap and keep their order");
    demand(place.start % kShardAlignment == 0, "starts are aligned");
    if (place.numel > 0) end_of_last = place.start + place.numel;
    covered += place.numel;
    const bool rows = layout.cut == CutRule::kRows;
    if (rows && place.numel > 0) demand(place.start % place.row_numel == 0, "starts are at rows");
    std::int64_t next = 0;
    for (int rank = 0; rank < layout.world; ++rank) {
      const ParameterPiece piece = piece_of(layout, i, rank);
      demand(product(piece.sizes) == piece.numel, "a leaf's shape has its elements");
      if (piece.numel == 0) continue;
      demand(piece.begin == next, "pieces follow each other");
      demand(piece.begin % kShardAlignment == 0, "cuts are aligned from the parameter's start");
      demand(piece.slice_offset + piece.numel <= slice, "a piece lies in its slice");
      demand(slice * rank + piece.slice_offset == place.start + piece.begin,
             "a piece lies where the parameter lies");
      const Sizes& sizes = layout.shapes[i].sizes;
      if (rows && !sizes.empty()) {
        demand(piece.sizes.size() == sizes.size(), "a leaf keeps its number of dimensions");
        demand(std::equal(sizes.begin() + 1, sizes.end(), piece.sizes.begin() + 1),
               "a leaf keeps its rows");
      } else {
        demand(piece.sizes.size() == 1, "a leaf cut at elements is 1-D");
      }
      next = piece.begin + piece.numel;
    }
    demand(next == place.numel, "pieces cover the parameter");
  }
  demand(end_of_last <= layout.total_numel(), "parameters fit");
  demand(covered == layout.parameter_numel, "parameter_numel is the sum");
}

Sizes random_sizes(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Sizes sizes(static_cast<std::size_t>(pick(0, 4)));
  for (std::int64_t& size : sizes) {
    const std::int64_t kind = pick(0, 9);
    size = kind == 0 ? 0 : kind < 4 ? pick(1, 3) : kind < 8 ? pick(1, 70) : 32 * pick(1, 6);
  }
  return sizes;
}

}  // namespace

TEST_CASE("generated parameter lists keep every promise in worlds 1 to 8") {
  std::mt19937_64 random(20240607);
  int cut_at_rows = 0, cut_at_elements = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<Sizes> sizes(std::uniform_int_distribution<std::size_t>(0, 12)(random));
    for (Sizes& one : sizes) one = random_sizes(random);
    const auto shapes = shapes_of(sizes);
    for (int world = 1; world <= 8; ++world) {
      const FlatLayout layout = plan_layout(shapes, world);
      REQUIRE_NOTHROW(verify(layout));
      ++(layout.cut == CutRule::kRows ? cut_at_rows : cut_at_elements);
      // Forced the other way, the promises hold as well.
      REQUIRE_NOTHROW(verify(
          plan_layout(shapes, world, {.max_padding_share = -1.0, .free_padding_numel = -1})));
    }
  }
  // Both rules really occurred.
  CHECK(cut_at_rows > 1000);
  CHECK(cut_at_elements > 50);
}

TEST_CASE("a transformer block is cut at rows and costs almost no padding") {
  const std::int64_t dim = 384;
  const auto shapes = shapes_of({{dim},
                                 {dim},
                                 {3 * dim, dim},
                                 {3 * dim},
                                 {dim, dim},
                                 {dim},
                                 {dim},
                                 {dim},
                                 {4 * dim, dim},
                                 {4 * dim},
                                 {dim, 4 * dim},
                                 {dim}});
  for (int world = 1; world <= 8; ++world) {
    const FlatLayout layout = plan_layout(shapes, world);
    CHECK(layout.cut == CutRule::kRows);
    CHECK(layout.padding_numel() < layout.parameter_numel / 100);
    CHECK(layout.slice_numel % (4 * dim) == 0);
  }
}

TEST_CASE("rows without a useful common multiple are cut at elements") {
  const auto shapes = shapes_of({{401, 397}, {397, 389}, {389, 383}, {10, 379}});
  const FlatLayout layout = plan_layout(shapes, 2);
  CHECK(layout.cut == CutRule::kElements);
  CHECK(layout.padding_numel() < 4 * kShardAlignment + 2 * kShardAlignment);
  CHECK(piece_of(layout, 0, 0).sizes.size() == 1);
  REQUIRE_NOTHROW(verify(layout));
}

TEST_CASE("row lengths near 2^63 neither overflow nor hang") {
  const std::int64_t big = (std::int64_t{1} << 61) - 1;
  const FlatLayout layout = plan_layout(shapes_of({{1, big}, {3, 7}}), 3);
  CHECK(layout.cut == CutRule::kElements);
  CHECK(layout.parameter_numel == big + 21);
  CHECK(layout.total_numel() >= layout.parameter_numel);
}

TEST_CASE("C028: shapes [5,3], [7], [1], [] on four ranks leave some slices empty") {
  const auto shapes = shapes_of({{5, 3}, {7}, {1}, {}});
  const FlatLayout layout = plan_layout(shapes, 4);
  REQUIRE_NOTHROW(verify(layout));
  int holders_of_scalar = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterPiece scalar = piece_of(layout, 3, rank);
    CHECK(scalar.sizes == Sizes{scalar.numel});  // [1] or [0]
    holders_of_scalar += static_cast<int>(scalar.numel);
    const ParameterPiece matrix = piece_of(layout, 0, rank);
    CHECK(matrix.sizes.size() == 2);
    CHECK(matrix.sizes[1] == 3);
  }
  CHECK(holders_of_scalar == 1);
}

TEST_CASE("a list without elements gives slices of nothing") {
  CHECK(plan_layout({}, 3).total_numel() == 0);
  const FlatLayout layout = plan_layout(shapes_of({{0, 4}, {4, 0}}), 3);
  CHECK(layout.total_numel() == 0);
  CHECK(piece_of(layout, 1, 2).sizes == Sizes{4, 0});
}

TEST_CASE("impossible input is refused by name") {
  CHECK_THROWS_WITH(plan_layout(shapes_of({{2, -1}}), 2), Catch::Contains("'p0'"));
  CHECK_THROWS_AS(plan_layout({}, 0), Error);
}

}  // namespace convoy
