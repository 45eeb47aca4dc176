// A rank's end of the control channel.
#pragma once

#include "convoy/control/failure_report.h"
#include "convoy/control/session.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace convoy {

/// Which job a process belongs to, and who it is there.
struct ControlClientOptions {
  std::string address;  ///< CONVOY_CONTROL: "unix:@name" or "unix:/path".
  int rank = 0;
  int world_size = 1;
  std::string run_id;
  std::int64_t generation = 0;
  /// For connecting and being accepted.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(30);
  /// For the answer to a request that does not wait for other ranks. The launcher answers in
  /// microseconds; this bounds what a stopped launcher can do to us.
  std::chrono::nanoseconds answer_timeout = std::chrono::seconds(30);
};

/// Joins the job. One background thread, blocked in poll(), takes answers and the news of failures;
/// it ends with the session. Keys are prefixed with the generation, so that two lives of a run
/// cannot meet. A wait in the store ends with the job's first failure as soon as that is known.
/// When the launcher goes away the session fails with kPeerLost: that, and the parent-death signal
/// that convoyrun sets, keep ranks from outliving it.
/// The destructor says goodbye and waits at most two seconds for the answer. It must not run in an
/// on_failure callback.
/// Errors: kPeerLost (nobody listens there), kMismatch (other version, run, generation or world
/// size, or two processes claim the rank: both are named), kTimeout, kProtocol (another user),
/// kSystem.
std::shared_ptr<Session> connect_session(const ControlClientOptions& options);

/// Brings one report to the launcher over a connection of its own, for a rank whose session has
/// ended or never began, and waits (a second at most) to hear whether this rank shall print it. Of
/// ranks with equal texts the lowest prints. `report.reporter` must be `options.rank`.
class FailureMessenger {
 public:
  FailureMessenger(const ControlClientOptions& options, const FailureReport& report) noexcept;
  ~FailureMessenger();
  FailureMessenger(const FailureMessenger&) = delete;
  FailureMessenger& operator=(const FailureMessenger&) = delete;

  /// True also when the launcher could not be asked. Print before this object is destroyed: the
  /// other ranks wait for that until they exit.
  bool should_print() const noexcept { return should_print_; }

 private:
  struct Link;
  std::unique_ptr<Link> link_;
  bool should_print_ = true;
};

}  // namespace convoy
