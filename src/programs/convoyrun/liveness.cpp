// Counts how long ranks have been stopped.
#include "programs/convoyrun/liveness.h"

#include "convoy/base/process.h"

#include <algorithm>

namespace convoy::launcher {

bool is_stopped_by_signal(pid_t pid) {
  const auto status = read_process_status(pid);
  return status && status->state == 'T';
}

std::vector<Liveness::Finding> Liveness::look(const std::vector<RankRecord>& ranks, double now) {
  // Far behind the time it asked for: the launcher did not run, and knows nothing of that time.
  if (now > next_look_ + 2 * limits_.interval) {
    for (auto& [rank, stop] : stops_) stop.since = now;
  }
  std::vector<Finding> findings;
  next_look_ = now + limits_.interval;
  for (const auto& rank : ranks) {
    if (!rank.is_running() || rank.stopped_since) {
      stops_.erase(rank.rank);
      continue;
    }
    const bool is_wrapped = rank.has_joined() && rank.joined_pid != rank.pid;
    const bool is_stopped = is_stopped_(rank.pid) || (is_wrapped && is_stopped_(rank.joined_pid));
    if (!is_stopped) {
      const auto found = stops_.find(rank.rank);
      if (found == stops_.end()) continue;
      if (found->second.has_warned) {
        findings.push_back({rank.rank, Finding::What::kMovesAgain, found->second.since});
      }
      stops_.erase(found);
      continue;
    }
    Stop& stop = stops_.try_emplace(rank.rank, Stop{now}).first->second;
    if (now >= stop.since + limits_.give_up) {
      findings.push_back({rank.rank, Finding::What::kGiveUp, stop.since});
      continue;
    }
    if (!stop.has_warned && now >= stop.since + limits_.warn) {
      findings.push_back({rank.rank, Finding::What::kWarn, stop.since});
      stop.has_warned = true;
    }
    next_look_ = std::min(
        next_look_, stop.has_warned ? stop.since + limits_.give_up : stop.since + limits_.warn);
  }
  return findings;
}

}  // namespace convoy::launcher
