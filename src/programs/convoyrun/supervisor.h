// Runs one job: starts its ranks, watches them, and ends them all when one fails or when told to.
#pragma once

#include "programs/convoyrun/console.h"
#include "programs/convoyrun/event_loop.h"
#include "programs/convoyrun/job_control.h"
#include "programs/convoyrun/liveness.h"
#include "programs/convoyrun/outcome.h"
#include "programs/convoyrun/rank_outputs.h"
#include "programs/convoyrun/rank_processes.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <signal.h>

namespace convoy::launcher {

/// Everything that is decided before the first rank starts.
struct JobPlan {
  std::string run_id;
  std::string host;
  std::string control_address;
  Command command;
  EnvironmentBlock environment;  ///< The launcher's own.
  JobVariables variables;
  std::vector<std::optional<int>> cores;  ///< By rank.
  std::chrono::nanoseconds shutdown_timeout{};
  sigset_t signal_mask{};  ///< For the ranks.
};

/// Note [How a job ends]
/// kRunning     All is well. When the last rank ends, the job has ended.
/// kNotice      A rank has failed. Ranks on the control channel have been told and get a moment to
///              say so in their own words and end by themselves; the others get SIGTERM at once.
/// kTerminating Every rank has SIGTERM (or the signal that the launcher was told to stop with).
/// kKilling     The grace time is over, or a second signal came: SIGKILL.
/// kEnded       No rank is left.
enum class Stage { kRunning, kNotice, kTerminating, kKilling, kEnded };

/// Thread rule: one thread. Made once, run once.
class Supervisor {
 public:
  Supervisor(EventLoop& loop, Console& console, const LogFiles& logs, Guard& guard,
             const JobPlan& plan);

  /// Starts the ranks, and returns when all have ended and their output has been read. Error:
  /// kSystem when a rank could not be started. No rank is left in any case.
  Outcome run();

  /// A signal came to the launcher.
  void on_signal(int signal_number);
  /// After run(): writes what the console still holds. A reader that takes its time gets
  /// everything, unless a signal says that nobody waits for it.
  void finish_output();

 private:
  void start_ranks();
  void enter(Stage to);
  void fail(int rank, const std::string& text);
  bool has_reported(int rank) const;
  void tell_to_stop(int signal_number);
  void terminate(int signal_number);
  void kill_all();

  void on_refused(const std::string& reason);
  void on_start_problem(int rank, const StartProblem& problem);
  void on_rank_ended(RankRecord& rank);
  void on_time();
  void look_at_liveness();
  void look_for_abandoned();
  Deadline next_deadline() const;
  void drain_outputs();
  Outcome conclude();

  EventLoop& loop_;
  Console& console_;
  const LogFiles& logs_;
  const JobPlan& plan_;

  Stage stage_ = Stage::kRunning;
  double stage_end_ = 0;        // when kNotice, kTerminating and kKilling give way to the next
  std::optional<int> told_by_;  // the signal that told the job to stop, before anything failed
  std::optional<NotRunnable> not_runnable_;
  std::vector<TimedReport> reports_;
  std::optional<int> left_early_;  // a rank that the others waited for in vain
  double abandoned_since_ = -1;
  int refused_ = 0;          // connections so far
  bool is_hurried_ = false;  // a signal asked for the end at once

  RankProcesses processes_;
  RankOutputs outputs_;
  JobControl control_;
  Liveness liveness_;
};

}  // namespace convoy::launcher
