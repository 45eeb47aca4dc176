// Ranks as real processes: a control server of the test, and one worker process for each rank.
#pragma once

#include "convoy/base/fd.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace convoy::test {

/// How a worker ended, and what it printed.
struct RankResult {
  int exit_code = -1;  ///< -1 when a signal ended it.
  int signal = 0;
  std::string output;  ///< stdout and stderr.

  /// True if the output has `text`.
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

/// The ranks of one job, each running `comm_worker SCENARIO ARGS`. There is no launcher: nothing
/// but the ranks themselves notices that one has died. Whatever still runs is killed at the end.
class RankProcesses {
 public:
  RankProcesses(int world_size, const std::string& scenario, std::vector<std::string> args = {},
                std::vector<int> absent = {});
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  void signal(int rank, int number) const;
  /// Waits until the rank has printed `text`. False if it takes longer than `longest`, or it ended.
  bool wait_for_output(int rank, const std::string& text, std::chrono::seconds longest);
  /// Waits until the rank has ended; a rank that does not is killed and has signal SIGKILL.
  RankResult finish(int rank, std::chrono::seconds longest = std::chrono::seconds(60));
  std::vector<RankResult> finish_all(std::chrono::seconds longest = std::chrono::seconds(60));

 private:
  struct Server;
  void read_some(int rank);

  std::unique_ptr<Server> server_;
  std::vector<pid_t> pids_;
  std::vector<Fd> outputs_;
  std::vector<std::string> texts_;
};

}  // namespace convoy::test
