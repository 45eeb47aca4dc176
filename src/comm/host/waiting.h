// Waiting for an operation: spins shortly, then sleeps, and looks after the peers meanwhile.
#pragma once

#include "comm/host/host_group.h"
#include "comm/host/liveness.h"
#include "comm/host/operation.h"
#include "comm/host/progress.h"
#include "convoy/base/log.h"
#include "convoy/comm/types.h"

#include <chrono>

namespace convoy {

/// Thread-safe; several threads of a rank may wait at once.
class Waiting {
 public:
  Waiting(const HostGroup& group, Progress& progress, Liveness& liveness, Logger log,
          const CommunicatorOptions& options);

  /// Until the operation is over (OpState::kDone or kFailed). A time limit, a lost peer and one
  /// that left fail the group, which ends the wait.
  OpState wait(const Operation& op);
  /// Looks after the peers on behalf of callers that do not wait: fails the group if one is lost.
  void look_after_peers();
  /// Until everything in flight is over, at most `longest`; gives up in silence.
  void drain(std::chrono::nanoseconds longest);

 private:
  bool has_left(const Operation& op) const;
  void look_after(const Operation& op, std::chrono::steady_clock::time_point begin,
                  Deadline& next_warning, std::chrono::nanoseconds& warning);

  const HostGroup& group_;
  Progress& progress_;
  Liveness& liveness_;
  Logger log_;
  const CommunicatorOptions& options_;
  std::chrono::nanoseconds spin_;
};

}  // namespace convoy
