// Work that rank 0 does for all, whose failure all ranks must see as the same error.
#pragma once

#include "convoy/base/error.h"
#include "convoy/comm/communicator.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace convoy::saving {

/// How long ranks wait for rank 0 while it reads or writes a checkpoint, if that is more than the
/// time limit of the communicator: a limit for disks that never answer. That rank 0 has died or was
/// stopped is noticed at once, as everywhere, and rank 0 waits for the others as in any call.
inline constexpr std::chrono::nanoseconds kDiskLimit = std::chrono::hours(6);

/// Collects what goes wrong on rank 0 between collective calls, so that no rank waits for one that
/// has thrown: `run` the work, keep to the collective calls, then `agree`.
/// Thread rule: one thread at a time.
class FirstRank {
 public:
  /// Null: there is one process. `disk_limit`: see kDiskLimit.
  explicit FirstRank(Communicator* comm, std::chrono::nanoseconds disk_limit = kDiskLimit)
      : comm_(comm), disk_limit_(disk_limit) {}

  bool is_first() const noexcept { return comm_ == nullptr || comm_->rank() == 0; }
  /// Calls `task` on rank 0, unless an earlier one failed. Keeps its exception.
  void run(const std::function<void()>& task) noexcept;
  /// Throws rank 0's exception, if it had one, on all ranks: an Error as it is, anything else as
  /// kSystem (no memory: kMemory). Collective.
  void agree();

 private:
  Communicator* comm_;
  std::chrono::nanoseconds disk_limit_;
  std::optional<Error> error_;
};

/// How a rank waits for what rank 0 has read or is going to write.
OpOptions wait_for_disk(const Communicator& comm, std::string tag,
                        std::chrono::nanoseconds disk_limit = kDiskLimit);

/// run() and agree() in one. Collective.
void on_first_rank(Communicator* comm, const std::function<void()>& task);

}  // namespace convoy::saving
