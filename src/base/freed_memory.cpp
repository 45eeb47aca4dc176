// Lets malloc take everything from one heap that never shrinks, on huge pages.
#include "convoy/base/freed_memory.h"

#if defined(__GLIBC__)
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace convoy {
namespace {

#if defined(__GLIBC__)
// The sanitizers' malloc would take at once what the heap is stretched by.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasMallocOfGlibc = false;
#else
constexpr bool kHasMallocOfGlibc = true;
#endif

bool is_limited(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

// Address space counts where it is limited, or where the kernel promises no more than it has.
bool is_address_space_free() {
  char policy = '2';
  std::ifstream("/proc/sys/vm/overcommit_memory") >> policy;
  return policy != '2' && !is_limited(RLIMIT_AS) && !is_limited(RLIMIT_DATA);
}

// malloc has no switch for it after the program has started (glibc.malloc.hugetlb is read before),
// so the heap is stretched once, marked, and left to malloc: only what is used takes memory.
void use_huge_pages() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) / 2 * page;
  if (!kHasMallocOfGlibc || !is_address_space_free()) return;
  const auto old_end = reinterpret_cast<std::uintptr_t>(::sbrk(0));
  void* const block = std::malloc(bytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(block);
  const auto end = reinterpret_cast<std::uintptr_t>(::sbrk(0));
  // Another malloc, or no room behind the heap: the block lies elsewhere.
  if (block != nullptr && begin <= old_end && old_end < begin + bytes && begin + bytes <= end) {
    const std::uintptr_t first = (begin + page - 1) / page * page;
    ::madvise(reinterpret_cast<void*>(first), (end - first) / page * page, MADV_HUGEPAGE);
  }
  std::free(block);
}
#endif

}  // namespace

void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_MAX, 0);         // No mapping of its own, which ends when the block is freed.
  ::mallopt(M_TRIM_THRESHOLD, -1);  // Nor is the end of the heap cut off.
  use_huge_pages();
#endif
}

}  // namespace convoy
