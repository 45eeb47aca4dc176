// Which ranks of a job have joined, left, finished or exited. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

namespace convoy {

enum class MemberState {
  kAbsent,  ///< Has not joined yet.
  kJoined,  ///< Has a session.
  kLeft,    ///< Its session has ended; it may join again.
  kExited,  ///< Its process has ended. It stays so.
};

struct Member {
  MemberState state = MemberState::kAbsent;
  pid_t pid = 0;             ///< Of its last session.
  bool has_joined = false;   ///< Ever.
  bool is_finished = false;  ///< Has entered the shutdown barrier.
  bool may_report = false;   ///< Left by an exception: a failure report is on its way.

  bool is_gone() const { return state == MemberState::kLeft || state == MemberState::kExited; }
};

/// Not thread-safe. Ranks are those of the world, checked by the caller.
class Membership {
 public:
  explicit Membership(int world_size) : members_(static_cast<std::size_t>(world_size)) {}

  int world_size() const noexcept { return static_cast<int>(members_.size()); }
  const Member& at(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  /// Why `rank` cannot join now, naming both claimants; empty if it can.
  std::string objection(int rank, pid_t pid) const;
  void join(int rank, pid_t pid);
  void leave(int rank, bool may_report);
  void exit(int rank);
  void finish(int rank);

  std::vector<int> never_joined() const;
  /// Left or exited.
  std::vector<int> gone() const;
  /// Neither in the shutdown barrier nor gone.
  std::vector<int> unfinished() const;

 private:
  void enter(int rank, MemberState to);
  std::vector<Member> members_;
};

/// "rank 2" or "ranks 2, 5 and 7"; from 9 on the first 8 and a count.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace convoy
