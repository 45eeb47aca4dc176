// The processes of the ranks: started, signalled, and their ends collected.
#pragma once

#include "programs/convoyrun/event_loop.h"
#include "programs/convoyrun/guard.h"
#include "programs/convoyrun/rank_record.h"
#include "programs/convoyrun/spawn.h"

#include <chrono>
#include <functional>
#include <vector>

namespace convoy::launcher {

/// Owns the ranks' processes. Each is the leader of a process group, so that a signal reaches its
/// children too. Thread rule: one thread, the one that made it (the kernel ties a rank's life to
/// it). The destructor kills what is still running.
class RankProcesses {
 public:
  struct Events {
    /// The program could not be executed.
    std::function<void(int rank, const StartProblem& problem)> on_start_problem;
    std::function<void(RankRecord& rank)> on_ended;
  };

  RankProcesses(EventLoop& loop, Guard& guard, int count, Events events);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Starts one rank. Error: kSystem.
  void start(int rank, SpawnRequest request);
  /// Collects processes that have ended. Call it after each SIGCHLD. Returns how many there were: a
  /// SIGCHLD without any tells of a child that was stopped or goes on.
  int reap();

  /// Sends a signal to the group of a running rank: it, and the children that stayed with it.
  void signal_group(int rank, int signal_number);
  /// Sends a signal to the rank alone.
  void signal_rank(int rank, int signal_number);
  /// Ends what remains when all ranks have ended: children that outlived their rank, in its group
  /// or (being handed to the launcher by the kernel) out of it. Waits for them at most `limit`.
  void end_leftovers(std::chrono::milliseconds limit);

  std::vector<RankRecord>& ranks() noexcept { return ranks_; }
  const std::vector<RankRecord>& ranks() const noexcept { return ranks_; }
  bool is_any_running() const;
  /// For a SpawnRequest.
  int guard_fd() const noexcept { return guard_.fd(); }
  /// Seconds since this object was made: the clock of all records.
  double now() const;

 private:
  void watch_start(int rank);
  void record_end(RankRecord& rank, int status, std::int64_t max_rss);
  void tell_end(RankRecord& rank);

  EventLoop& loop_;
  Guard& guard_;
  Events events_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<RankRecord> ranks_;
  std::vector<Fd> start_status_;      // by rank; empty once the program runs
  std::vector<bool> group_may_live_;  // by rank: its group had members after its leader's end
};

}  // namespace convoy::launcher
