// Reads the affinity mask and shares the cores out.
#include "programs/convoyrun/cores.h"

#include "convoy/base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>

#include <sched.h>

namespace convoy::launcher {

namespace {

// Frees a CPU set made by CPU_ALLOC.
struct CpuSetDeleter {
  void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};

}  // namespace

std::vector<int> usable_cores() {
  // The kernel refuses a set smaller than its own, and does not say how large that is.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, CpuSetDeleter> set(CPU_ALLOC(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      throw_system_error("cannot read the affinity mask", errno);
    }
    std::vector<int> cores;
    for (int core = 0; core < capacity; ++core) {
      if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
    }
    return cores;
  }
  throw_system_error("cannot read the affinity mask", EINVAL);
}

std::optional<int> core_for_rank(BindTo bind_to, const std::vector<int>& cores, int local_rank) {
  if (bind_to == BindTo::kNone || cores.empty()) return std::nullopt;
  return cores[static_cast<std::size_t>(local_rank) % cores.size()];
}

int threads_per_rank(BindTo bind_to, int cores, int ranks) {
  if (bind_to == BindTo::kCore) return 1;
  return std::max(1, cores / std::max(1, ranks));
}

}  // namespace convoy::launcher
