// Adds non-negative doubles without any rounding, in whatever order, and rounds once at the end.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace convoy::optim {

/// A small superaccumulator (Neal 2015, "Fast exact summation using small and large
/// superaccumulators"): a fixed-point number that covers the whole range of double in 32-bit limbs,
/// each kept in an int64 so that carries can wait. Because nothing is rounded, the limbs of several
/// sums can be added as integers, by an all_reduce for example, and the total depends on no order.
/// A value; one thread at a time.
class ExactSum {
 public:
  /// Limb k counts units of 2^(32 k - 1074). The top ones have room for 2^62 summands.
  static constexpr int kLimbs = 68;
  /// words(): the limbs, then how many infinite and how many nan summands there were.
  static constexpr int kWords = kLimbs + 2;

  /// value >= 0, infinite or nan.
  void add(double value) noexcept;
  /// The same for many at once; several times faster where they lie within a factor of 2^37.
  void add(std::span<const double> values) noexcept;
  void add(const ExactSum& other) noexcept;

  /// The state as integers with all carries done. Adding the words of up to 2^31 sums elementwise
  /// gives the words of their total.
  std::array<std::int64_t, kWords> words() noexcept;
  static ExactSum from_words(std::span<const std::int64_t, kWords> words) noexcept;

  /// The sum, rounded once to nearest even; inf above the range of double; nan or inf if such a
  /// value was added.
  double rounded() const noexcept;

 private:
  void carry() noexcept;
  /// Finite, of either sign; what is added altogether must not be negative.
  void add_finite(double value) noexcept;

  std::array<std::int64_t, kLimbs> limbs_{};
  std::int64_t infinities_ = 0;
  std::int64_t nans_ = 0;
  std::int64_t pending_ = 0;  ///< Summands since the last carry().
};

}  // namespace convoy::optim
