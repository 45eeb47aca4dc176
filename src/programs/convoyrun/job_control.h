// The launcher's side of the control channel, inside its event loop.
#pragma once

#include "convoy/control/control_server.h"
#include "programs/convoyrun/event_loop.h"
#include "programs/convoyrun/rank_record.h"

#include <functional>
#include <string>
#include <vector>

namespace convoy::launcher {

/// What ranks tell over the control channel. Called from the event loop.
struct JobControlEvents {
  std::function<void(int rank, pid_t pid)> on_joined;
  std::function<void(const FailureReport& report)> on_report;
  std::function<void(const std::string& reason)> on_refused;
};

/// Serves the ranks of one job. Thread rule: one thread.
class JobControl {
 public:
  /// Listens at `address`. Errors: kMemory, kSystem.
  JobControl(EventLoop& loop, const std::string& address, const std::string& run_id, int world_size,
             JobControlEvents events);
  ~JobControl();
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;

  /// The process of `rank` has ended: returns where it was.
  RankMark rank_ended(int rank);
  /// Tells all ranks that `rank` has failed. The first such call (or report) is the one they hear.
  void announce_failure(int rank, const std::string& text);

  /// A rank has left the job with the others waiting for something that nobody is left to give:
  /// every rank that still lives has been inside a store request, and has not moved, for as long
  /// as this has been true at each call. Returns the rank that left first, or -1.
  int abandoned_by(const std::vector<RankRecord>& ranks);

 private:
  EventLoop& loop_;
  ControlServer server_;
  std::vector<int> exits_;  // ranks in the order of their end
  std::vector<std::uint64_t> last_progress_;
};

}  // namespace convoy::launcher
