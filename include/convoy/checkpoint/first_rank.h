// Work that rank 0 does for all, whose failure all ranks must see as the same error.
#pragma once

#include "convoy/base/error.h"
#include "convoy/comm/communicator.h"

#include <functional>
#include <optional>

namespace convoy::saving {

/// Collects what goes wrong on rank 0 between collective calls, so that no rank waits for one that
/// has thrown: `run` the work, keep to the collective calls, then `agree`.
/// Thread rule: one thread at a time.
class FirstRank {
 public:
  /// Null: there is one process.
  explicit FirstRank(Communicator* comm) : comm_(comm) {}

  bool is_first() const noexcept { return comm_ == nullptr || comm_->rank() == 0; }
  /// Calls `task` on rank 0, unless an earlier one failed. Keeps its exception.
  void run(const std::function<void()>& task) noexcept;
  /// Throws rank 0's exception, if it had one, on all ranks: an Error as it is, anything else as
  /// kSystem (no memory: kMemory). Collective.
  void agree();

 private:
  Communicator* comm_;
  std::optional<Error> error_;
};

/// run() and agree() in one. Collective.
void on_first_rank(Communicator* comm, const std::function<void()>& task);

}  // namespace convoy::saving
