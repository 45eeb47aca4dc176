// Whole numbers rounded up to multiples.
#pragma once

#include <concepts>
#include <type_traits>

namespace convoy {

/// The next multiple of `unit` from `value` on; `value` >= 0, `unit` > 0.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace convoy
