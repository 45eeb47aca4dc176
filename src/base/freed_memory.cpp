// Raises malloc's thresholds.
#include "convoy/base/freed_memory.h"

#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace convoy {

void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
  constexpr int kNever = std::numeric_limits<int>::max();
  constexpr int kMostBeforeGlibc235 = 32 << 20;
  // No mapping of its own, which ends when the block is freed.
  for (const int bytes : {kNever, kMostBeforeGlibc235}) {
    if (::mallopt(M_MMAP_THRESHOLD, bytes) != 0) break;
  }
  ::mallopt(M_TRIM_THRESHOLD, kNever);  // Nor is the end of the heap cut off.
#endif
}

}  // namespace convoy
