// Looks at other processes of this machine.
#pragma once

#include "convoy/base/fd.h"

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace convoy {

/// A descriptor that becomes readable when process `pid` ends; closed on exec. Error: kSystem, with
/// ESRCH when there is no such process.
Fd open_pidfd(pid_t pid);

/// What /proc/<pid>/stat says.
struct ProcessStatus {
  char state = '?';  ///< R running, S asleep, D in a system call, T stopped, Z ended.
  pid_t parent = 0;
  std::uint64_t start_ticks = 0;  ///< Start time since boot; with the pid it names one process.

  bool is_stopped() const noexcept { return state == 'T' || state == 't'; }
  bool is_ended() const noexcept { return state == 'Z' || state == 'X'; }
};

/// Nothing if there is no such process, or /proc cannot be read.
std::optional<ProcessStatus> read_process_status(pid_t pid);

}  // namespace convoy
