// The sizes to which shared memory is divided.
#pragma once

#include <cstdint>

namespace convoy {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kLineBytes = 64;
inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

}  // namespace convoy
