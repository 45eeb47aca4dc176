// Starts one rank: a process in a group of its own that dies with the launcher.
#pragma once

#include "convoy/base/fd.h"
#include "programs/convoyrun/program.h"
#include "programs/convoyrun/rank_environment.h"

#include <optional>
#include <string>

#include <signal.h>
#include <sys/types.h>

namespace convoy::launcher {

struct SpawnRequest {
  const Command& command;
  EnvironmentBlock environment;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  std::optional<int> core;  ///< Bound to this core, if any.
  int guard_fd;             ///< Where the group is made known before the program starts.
  sigset_t signal_mask;     ///< The mask the program starts with.
};

/// A rank that was started and may not have executed its program yet.
struct Spawned {
  pid_t pid = -1;  ///< Also the number of its process group.
  /// Ends (reads 0 bytes) when the program runs; carries a StartProblem when it could not.
  Fd start_status;
};

/// Why a child could not execute its program.
struct StartProblem {
  enum class Step : int { kRedirect, kBind, kExec };
  Step step = Step::kExec;
  int error_number = 0;
};

/// Forks. Does not wait for the program to be executed: watch start_status. Error: kSystem.
Spawned spawn(SpawnRequest request);

/// What start_status says, once it is readable: nothing if the program runs.
std::optional<StartProblem> read_start_status(int start_status_fd);

}  // namespace convoy::launcher
