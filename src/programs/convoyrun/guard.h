// A tiny process that outlives the launcher's SIGKILL and leaves nothing of the job alive.
#pragma once

#include "convoy/base/fd.h"

#include <span>
#include <string>

#include <sys/types.h>

namespace convoy::launcher {

/// Tells the guard behind `guard_fd` that process group `group` belongs to the job, or no longer
/// does. One write of a few bytes; async-signal-safe, for use between fork and exec.
void announce_group(int guard_fd, pid_t group) noexcept;
void forget_group(int guard_fd, pid_t group) noexcept;

/// Kills what is left of the job: the given process groups, and then every process whose
/// environment holds `mark` as one of its entries, which finds those that left their group.
void kill_marked_processes(const std::string& mark);

/// Note [Orphans]
/// A rank has PR_SET_PDEATHSIG, so the kernel kills it when the launcher dies for any reason. Its
/// own children do not inherit that. The guard holds the read end of a pipe whose write end only
/// the launcher has (and children that have not executed their program yet). When the pipe ends
/// without dismiss(), the launcher was killed: the guard kills the ranks' process groups, then all
/// processes of this user that still carry the job's control address in their environment. What is
/// not found is a process that has left its group *and* cleared its environment.
///
/// Thread rule: one thread. The destructor without dismiss() lets the guard do its work.
class Guard {
 public:
  /// Starts the guard. `mark` is an environment entry, "NAME=value", that only this job has.
  /// `title` is the memory of the command line, in which the guard puts a name of its own, so that
  /// whoever looks for the launcher by its command line finds one process; it may be empty.
  /// Error: kSystem.
  Guard(const std::string& mark, std::span<char> title);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// For announce_group() and forget_group().
  int fd() const noexcept { return pipe_.get(); }
  pid_t pid() const noexcept { return pid_; }
  /// Nothing of the job is left: ends the guard and waits for it, which takes no time.
  void dismiss();

 private:
  Fd pipe_;
  pid_t pid_ = -1;
};

}  // namespace convoy::launcher
