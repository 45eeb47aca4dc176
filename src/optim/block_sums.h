// Sums of |x|^p over fixed blocks of an array, in an order that no instruction set or cut changes.
#pragma once

#include <cstdint>

namespace convoy::optim {

/// Sums over blocks of kShardAlignment (32) elements from `values` on, the last one as if filled up
/// with zeros: sums[k] for k < ceil(count / 32). Inside a block eight lanes in float64 take every
/// eighth element each, and the lanes are added as a fixed tree (see Note [Same bits for every
/// cut]).
void block_sums_of_squares(const float* values, std::int64_t count, double* sums);
void block_sums_of_squares(const double* values, std::int64_t count, double* sums);
void block_sums_of_magnitudes(const float* values, std::int64_t count, double* sums);
void block_sums_of_magnitudes(const double* values, std::int64_t count, double* sums);
/// |x|^p by std::pow, in element order.
void block_sums_of_powers(const float* values, std::int64_t count, double p, double* sums);
void block_sums_of_powers(const double* values, std::int64_t count, double p, double* sums);

/// The largest |x|, or a nan if there is one, or 0 of nothing.
double largest_magnitude(const float* values, std::int64_t count);
double largest_magnitude(const double* values, std::int64_t count);

}  // namespace convoy::optim
