// Sums of |x|^p over fixed blocks of an array. This file has its own compile flags.
#include "optim/block_sums.h"

#include "convoy/flat/shard_span.h"
#include "optim/vector_clones.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace convoy::optim {
namespace {

constexpr int kLanes = 8;
constexpr int kBlock = static_cast<int>(kShardAlignment);
static_assert(kBlock % kLanes == 0);

// GCC's vectors: one statement a lane-wise operation, lowered to whatever registers there are.
using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;
using HalfLanes [[gnu::vector_size(kLanes / 2 * sizeof(double))]] = double;

template <typename T>
CONVOY_INLINE_BODY Lanes load(const T* values) {
  using Values [[gnu::vector_size(kLanes * sizeof(T))]] = T;
  Values loaded;
  std::memcpy(&loaded, values, sizeof(loaded));
  return __builtin_convertvector(loaded, Lanes);
}

struct Square {
  // The square of a float32 is exact in float64.
  CONVOY_INLINE_BODY Lanes operator()(Lanes x) const { return x * x; }
};
struct Magnitude {
  CONVOY_INLINE_BODY Lanes operator()(Lanes x) const {
    const Lanes zero = {};
    return x < zero ? -x : x;
  }
};

template <typename Term, typename T>
CONVOY_INLINE_BODY double sum_block(const T* block) {
  const Term term;
  Lanes sum = term(load(block));
  for (int i = kLanes; i < kBlock; i += kLanes) sum += term(load(block + i));
  const HalfLanes four =
      __builtin_shufflevector(sum, sum, 0, 1, 2, 3) + __builtin_shufflevector(sum, sum, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

template <typename Term, typename T>
CONVOY_INLINE_BODY void sum_blocks(const T* values, std::int64_t count, double* sums) {
  const std::int64_t whole = count / kBlock;
  for (std::int64_t k = 0; k < whole; ++k) sums[k] = sum_block<Term>(values + k * kBlock);
  const std::int64_t rest = count - whole * kBlock;
  if (rest != 0) {
    T filled[kBlock] = {};
    std::copy_n(values + whole * kBlock, rest, filled);
    sums[whole] = sum_block<Term>(filled);
  }
}

template <typename T>
void sum_blocks_of_powers(const T* values, std::int64_t count, double p, double* sums) {
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    double sum = 0;
    for (std::int64_t i = begin; i < std::min(begin + kBlock, count); ++i) {
      sum += std::pow(std::abs(static_cast<double>(values[i])), p);
    }
    sums[begin / kBlock] = sum;
  }
}

/// Without the sign bit, floating point numbers are ordered as the integers of their bits, nan
/// last.
template <typename Integer, typename T>
CONVOY_INLINE_BODY T largest_by_bits(const T* values, std::int64_t count) {
  constexpr auto kWithoutSign = static_cast<Integer>(~(Integer{1} << (8 * sizeof(T) - 1)));
  Integer largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<Integer>(std::bit_cast<Integer>(values[i]) & kWithoutSign);
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<T>(largest);
}

CONVOY_VECTOR_CLONES
float largest_float(const float* values, std::int64_t count) {
  return largest_by_bits<std::int32_t>(values, count);
}
CONVOY_VECTOR_CLONES
double largest_double(const double* values, std::int64_t count) {
  return largest_by_bits<std::int64_t>(values, count);
}
CONVOY_VECTOR_CLONES
void squares_float(const float* values, std::int64_t count, double* sums) {
  sum_blocks<Square>(values, count, sums);
}
CONVOY_VECTOR_CLONES
void squares_double(const double* values, std::int64_t count, double* sums) {
  sum_blocks<Square>(values, count, sums);
}
CONVOY_VECTOR_CLONES
void magnitudes_float(const float* values, std::int64_t count, double* sums) {
  sum_blocks<Magnitude>(values, count, sums);
}
CONVOY_VECTOR_CLONES
void magnitudes_double(const double* values, std::int64_t count, double* sums) {
  sum_blocks<Magnitude>(values, count, sums);
}

}  // namespace

void block_sums_of_squares(const float* values, std::int64_t count, double* sums) {
  squares_float(values, count, sums);
}
void block_sums_of_squares(const double* values, std::int64_t count, double* sums) {
  squares_double(values, count, sums);
}
void block_sums_of_magnitudes(const float* values, std::int64_t count, double* sums) {
  magnitudes_float(values, count, sums);
}
void block_sums_of_magnitudes(const double* values, std::int64_t count, double* sums) {
  magnitudes_double(values, count, sums);
}
void block_sums_of_powers(const float* values, std::int64_t count, double p, double* sums) {
  sum_blocks_of_powers(values, count, p, sums);
}
void block_sums_of_powers(const double* values, std::int64_t count, double p, double* sums) {
  sum_blocks_of_powers(values, count, p, sums);
}
double largest_magnitude(const float* values, std::int64_t count) {
  return largest_float(values, count);
}
double largest_magnitude(const double* values, std::int64_t count) {
  return largest_double(values, count);
}

}  // namespace convoy::optim
