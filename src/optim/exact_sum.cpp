// Adds non-negative doubles without any rounding, in whatever order, and rounds once at the end.
#include "optim/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace convoy::optim {
namespace {

constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissaMask = (std::uint64_t{1} << kMantissaBits) - 1;
constexpr std::int64_t kLimbMask = 0xffffffff;
// Each summand adds less than 2^32 to a limb, so 2^30 of them stay far from its sign bit.
constexpr std::int64_t kCarryEvery = std::int64_t{1} << 30;

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

}  // namespace

void ExactSum::add(double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> kMantissaBits & 0x7ff);
  auto mantissa = bits & kMantissaMask;
  if (exponent == 0x7ff) [[unlikely]] {
    ++(mantissa == 0 ? infinities_ : nans_);
    return;
  }
  // value = mantissa * 2^(position - 1074); a subnormal has no hidden bit and exponent 1.
  int position = 0;
  if (exponent != 0) {
    mantissa |= kMantissaMask + 1;
    position = exponent - 1;
  }
  const int limb = position / 32;
  const int shift = position % 32;
  const auto low = mantissa << shift;
  limbs_[limb] += static_cast<std::int64_t>(low & kLimbMask);
  limbs_[limb + 1] += static_cast<std::int64_t>(low >> 32);
  limbs_[limb + 2] += static_cast<std::int64_t>(mantissa >> 1 >> (63 - shift));
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
