// Sizes rounded up to pages and cache lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kLineBytes = 64;

/// The next multiple of `unit` from `bytes` on.
constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace convoy
