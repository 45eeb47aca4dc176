// What the system says about the memory of this process.
#pragma once

#include <cstdint>
#include <optional>

namespace convoy::profile {

/// Bytes; nothing where the system does not tell (/proc not mounted, an old kernel).
struct ProcessMemory {
  std::optional<std::int64_t> rss;       ///< Resident now. Shared pages count fully.
  std::optional<std::int64_t> rss_peak;  ///< The most there was since the start.
  std::optional<std::int64_t> files;   ///< Part of rss that is mapped from files: libraries, data.
  std::optional<std::int64_t> shared;  ///< Part of rss that is shared memory, of any rank.
  std::optional<std::int64_t> pss;     ///< As rss, each page divided by the processes that map it.
};

ProcessMemory read_process_memory();

/// From the texts of /proc/<pid>/status and /proc/<pid>/smaps_rollup.
ProcessMemory parse_process_memory(const char* status, const char* smaps_rollup);

}  // namespace convoy::profile
