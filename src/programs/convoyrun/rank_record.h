// What the launcher knows about one rank.
#pragma once

#include "convoy/control/failure_report.h"
#include "convoy/control/job_page.h"

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace convoy::launcher {

/// How a process ended, as wait4() told.
struct Ending {
  std::optional<int> exit_code;  ///< Set when it exited.
  std::optional<int> signal;     ///< Set when a signal ended it.
  double seconds = 0;            ///< Since the launcher's start.
  std::int64_t max_rss = 0;      ///< Bytes.

  bool is_clean() const noexcept { return exit_code == 0; }
};

/// One rank. Times are seconds since the launcher's start.
struct RankRecord {
  int rank = 0;
  pid_t pid = -1;  ///< Also its process group. -1 until it was started.
  /// The process that joined the control channel: `pid` itself or a child of it, behind a wrapper
  /// script for example. 0 until one has joined.
  pid_t joined_pid = 0;
  std::optional<Ending> ending;
  RankMark mark;  ///< Where it was when it ended.

  bool was_signalled = false;           ///< The launcher had asked it to stop before it ended.
  bool was_killed = false;              ///< The launcher sent it SIGKILL.
  std::optional<double> stopped_since;  ///< Found stopped (state T) and given up.

  bool is_running() const noexcept { return pid > 0 && !ending; }
  bool has_joined() const noexcept { return joined_pid > 0; }
  /// Ended badly without having been asked to stop.
  bool has_failed() const noexcept {
    return stopped_since || (ending && !ending->is_clean() && !was_signalled && !was_killed);
  }
};

/// A report, and when it came.
struct TimedReport {
  FailureReport report;
  double seconds = 0;
};

}  // namespace convoy::launcher
