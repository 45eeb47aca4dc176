// Finds ranks that are stopped: alive, and going nowhere.
#pragma once

#include "programs/convoyrun/rank_record.h"

#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace convoy::launcher {

/// Limits from the moment a rank is first seen stopped, in seconds.
struct LivenessLimits {
  double warn = 1;
  double give_up = 5;
  double interval =
      0.5;  ///< Between two looks. A stop of the launcher's own child is told at once.
};

/// Watches the process state of ranks. Ask it with look(); it remembers since when each rank has
/// been stopped. Time only counts while it is asked regularly: where the launcher itself was
/// suspended along with its ranks, all counting starts anew.
///
/// A rank under a debugger (state t) is not stopped in this sense. Neither is one in an
/// uninterruptible system call (state D), which can be a slow disk and cannot be killed anyway.
class Liveness {
 public:
  /// True if process `pid` is stopped by a signal.
  using IsStopped = std::function<bool(pid_t pid)>;

  Liveness(LivenessLimits limits, IsStopped is_stopped)
      : limits_(limits), is_stopped_(std::move(is_stopped)) {}

  struct Finding {
    enum class What { kWarn, kGiveUp, kMovesAgain };
    int rank;
    What what;
    double stopped_since;
  };

  /// What is new at time `now`.
  std::vector<Finding> look(const std::vector<RankRecord>& ranks, double now);
  /// When to look next at the latest.
  double next_look() const noexcept { return next_look_; }

 private:
  struct Stop {
    double since;
    bool has_warned = false;
  };

  LivenessLimits limits_;
  IsStopped is_stopped_;
  std::map<int, Stop> stops_;
  double next_look_ = 0;
};

/// Reads /proc.
bool is_stopped_by_signal(pid_t pid);

}  // namespace convoy::launcher
