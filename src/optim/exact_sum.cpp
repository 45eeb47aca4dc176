// Adds non-negative doubles without any rounding, in whatever order, and rounds once at the end.
#include "optim/exact_sum.h"

#include "optim/vector_clones.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace convoy::optim {
namespace {

constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissaMask = (std::uint64_t{1} << kMantissaBits) - 1;
constexpr std::uint64_t kExponentMask = 0x7ff;
constexpr std::int64_t kLimbMask = 0xffffffff;
// Each summand adds less than 2^32 to a limb, so 2^30 of them stay far from its sign bit.
constexpr std::int64_t kCarryEvery = std::int64_t{1} << 30;

/// 2^exponent for a normal number.
CONVOY_INLINE_BODY double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << kMantissaBits);
}

/// `count` (at most 53) bits of the fixed-point number from bit `position` up.
std::uint64_t bits_at(const std::array<std::int64_t, ExactSum::kLimbs>& limbs, int position,
                      int count) {
  std::uint64_t value = 0;
  for (int bit = count - 1; bit >= 0; --bit) {
    const int at = position + bit;
    value = value << 1 | (static_cast<std::uint64_t>(limbs[at / 32]) >> (at % 32) & 1);
  }
  return value;
}

bool any_bit_below(const std::array<std::int64_t, ExactSum::kLimbs>& limbs, int position) {
  for (int i = 0; i < position / 32; ++i) {
    if (limbs[i] != 0) return true;
  }
  return (limbs[position / 32] & ((std::int64_t{1} << (position % 32)) - 1)) != 0;
}

// Sums that lie in neighbouring blocks are of like size; a batch of them is added in two integers.
constexpr std::size_t kBatch = 128;

// Splits each of at most kBatch values >= 0 into a multiple of 2^(E - 44) and a multiple of
// 2^(E - 89), where 2^E is above the largest, and adds both kinds as integers; *high + *low is the
// sum. Adding 1.5 * 2^(k + 52) to a small double leaves the nearest multiple of 2^k in its low bits
// (as in Rump, Ogita and Oishi 2008, "Accurate floating-point summation"). False if a value has
// bits below that, or is not finite, or the range of double does not allow it.
CONVOY_VECTOR_CLONES
bool sum_in_two_parts(const double* values, std::size_t count, double* high, double* low) {
  *high = *low = 0;
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int64_t>(values[i]));
  }
  if (largest == 0) return true;
  const int exponent = static_cast<int>(largest >> kMantissaBits) - 1022;  // E
  if (exponent < -900 || exponent > 900) return false;
  const double to_high = 1.5 * power_of_two(exponent + 8);
  const double to_low = 1.5 * power_of_two(exponent - 37);
  const auto high_bits = std::bit_cast<std::int64_t>(to_high);
  const auto low_bits = std::bit_cast<std::int64_t>(to_low);
  std::int64_t high_sum = 0;
  std::int64_t low_sum = 0;
  std::int64_t left_over = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double with_high = values[i] + to_high;
    const double rest = values[i] - (with_high - to_high);
    const double with_low = rest + to_low;
    high_sum += std::bit_cast<std::int64_t>(with_high) - high_bits;
    low_sum += std::bit_cast<std::int64_t>(with_low) - low_bits;
    left_over |= std::bit_cast<std::int64_t>(rest - (with_low - to_low));
  }
  *high = static_cast<double>(high_sum) * power_of_two(exponent - 44);
  *low = static_cast<double>(low_sum) * power_of_two(exponent - 89);
  return left_over == 0;
}

}  // namespace

void ExactSum::add(double value) noexcept {
  if (std::isfinite(value)) [[likely]] {
    add_finite(value);
  } else {
    ++(std::isnan(value) ? nans_ : infinities_);
  }
}

void ExactSum::add(std::span<const double> values) noexcept {
  while (!values.empty()) {
    const auto batch = values.first(std::min(values.size(), kBatch));
    double high = 0;
    double low = 0;
    if (sum_in_two_parts(batch.data(), batch.size(), &high, &low)) [[likely]] {
      add_finite(high);
      add_finite(low);
    } else {
      for (const double value : batch) add(value);
    }
    values = values.subspan(batch.size());
  }
}

void ExactSum::add_finite(double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> kMantissaBits & kExponentMask);
  auto mantissa = bits & kMantissaMask;
  // |value| = mantissa * 2^(position - 1074); a subnormal has no hidden bit and exponent 1.
  int position = 0;
  if (exponent != 0) {
    mantissa |= kMantissaMask + 1;
    position = exponent - 1;
  }
  const int limb = position / 32;
  const int shift = position % 32;
  const auto low = mantissa << shift;
  const std::int64_t sign = value < 0 ? -1 : 1;
  limbs_[limb] += sign * static_cast<std::int64_t>(low & kLimbMask);
  limbs_[limb + 1] += sign * static_cast<std::int64_t>(low >> 32);
  limbs_[limb + 2] += sign * static_cast<std::int64_t>(mantissa >> 1 >> (63 - shift));
  if (++pending_ == kCarryEvery) [[unlikely]] {
    carry();
  }
}

void ExactSum::carry() noexcept {
  std::int64_t carried = 0;
  for (auto& limb : limbs_) {
    limb += carried;
    carried = limb >> 32;
    limb &= kLimbMask;
  }
  pending_ = 0;
}

void ExactSum::add(const ExactSum& other) noexcept {
  auto theirs = other;
  theirs.carry();
  carry();
  for (int i = 0; i < kLimbs; ++i) limbs_[i] += theirs.limbs_[i];
  carry();
  infinities_ += other.infinities_;
  nans_ += other.nans_;
}

std::array<std::int64_t, ExactSum::kWords> ExactSum::words() noexcept {
  carry();
  std::array<std::int64_t, kWords> words{};
  for (int i = 0; i < kLimbs; ++i) words[i] = limbs_[i];
  words[kLimbs] = infinities_;
  words[kLimbs + 1] = nans_;
  return words;
}

ExactSum ExactSum::from_words(std::span<const std::int64_t, kWords> words) noexcept {
  ExactSum sum;
  for (int i = 0; i < kLimbs; ++i) sum.limbs_[i] = words[i];
  sum.infinities_ = words[kLimbs];
  sum.nans_ = words[kLimbs + 1];
  sum.carry();
  return sum;
}

double ExactSum::rounded() const noexcept {
  if (nans_ != 0) return std::numeric_limits<double>::quiet_NaN();
  if (infinities_ != 0) return std::numeric_limits<double>::infinity();
  auto sum = *this;
  sum.carry();
  const auto& limbs = sum.limbs_;

  int top = kLimbs - 1;
  while (top >= 0 && limbs[top] == 0) --top;
  if (top < 0) return 0.0;
  const int highest = 32 * top + 63 - std::countl_zero(static_cast<std::uint64_t>(limbs[top]));
  if (highest <= kMantissaBits) {
    return std::ldexp(static_cast<double>(bits_at(limbs, 0, highest + 1)), -1074);
  }
  const int lowest = highest - kMantissaBits;  // Position of the last bit that is kept.
  auto mantissa = bits_at(limbs, lowest, kMantissaBits + 1);
  const bool half = bits_at(limbs, lowest - 1, 1) != 0;
  if (half && ((mantissa & 1) != 0 || any_bit_below(limbs, lowest - 1))) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), lowest - 1074);
}

}  // namespace convoy::optim
