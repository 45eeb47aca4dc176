// Looks whether the peers of a group are alive, without any launcher.
#pragma once

#include "comm/host/control_page.h"
#include "comm/host/host_group.h"
#include "convoy/base/error.h"
#include "convoy/base/fd.h"
#include "convoy/base/log.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

#include <poll.h>

namespace convoy {

/// Watches the processes of the peers: ended ones through pidfds, stopped ones through /proc. Peers
/// that are threads of this process are not watched. Thread-safe.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  /// All ranks are present: their pids are known.
  Liveness(const HostGroup& group, Logger log);

  /// An error if a peer has ended without leaving the group, or has been stopped for 5 s; a warning
  /// goes to the log after 1 s. `op` is what the caller waits for. Does nothing when it has looked
  /// less than 50 ms ago.
  std::optional<Error> look(const OpHeader& op);

 private:
  struct Peer {
    int rank;
    pid_t pid;
    Fd pidfd;
    std::chrono::nanoseconds stopped{0};  ///< For how long it has been seen stopped.
    bool is_warned = false;
  };
  std::optional<Error> look_for_ended(const OpHeader& op);
  std::optional<Error> look_for_stopped(const OpHeader& op, std::chrono::nanoseconds passed);

  const HostGroup& group_;
  Logger log_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  Clock::time_point last_end_look_;
  Clock::time_point last_stop_look_;
};

}  // namespace convoy
