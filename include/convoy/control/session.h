// What a rank has of its job besides the store: the first failure, and a place to say where it is.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/error.h"
#include "convoy/control/store.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// A rank's link to its job: to convoyrun's control channel, or to the other threads of one
/// process. Thread-safe. Owned by the Job; communicators keep a shared_ptr.
class Session {
 public:
  virtual ~Session() = default;

  virtual std::shared_ptr<Store> store() = 0;

  /// Tells the job that this rank failed. The first report of the job wins and reaches all ranks.
  virtual void report_failure(const Error& error) noexcept = 0;
  /// The first failure of the job that this rank has heard of (its rank is the world rank to
  /// blame). Cheap: one atomic load when there is none.
  virtual std::optional<Error> failure() const = 0;
  /// Calls `notify` (from another thread, once, must be quick and not throw) as soon as failure()
  /// has a value, at once if it already has. The returned handle unregisters when destroyed.
  virtual std::shared_ptr<void> on_failure(std::function<void()> notify) = 0;

  /// World ranks whose session has ended, in order: after a normal end as well as after a crash. It
  /// is no failure by itself; who needs one of them can say that it has left.
  virtual std::vector<int> left_ranks() const { return {}; }
  /// The shutdown barrier: says that this rank is done with its peers, and waits until every rank
  /// has said so or has left. Calling it is optional, because what ranks share here is kept by the
  /// launcher (or the other threads), which outlives them. Errors: kTimeout naming the ranks that
  /// are not done; the job's failure.
  virtual void finish(Deadline deadline) { static_cast<void>(deadline); }

  /// Publishes the operation this rank is in, where the launcher can read it even after a SIGKILL.
  /// A few stores into shared memory; `tag` is cut at 63 bytes. An empty `operation` means none.
  virtual void mark_operation(std::string_view operation, std::uint64_t sequence,
                              std::string_view tag) noexcept = 0;
};

}  // namespace convoy
