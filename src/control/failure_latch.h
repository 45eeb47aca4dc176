// The first failure of a job: set once, read cheaply, told to whoever asked.
#pragma once

#include "convoy/base/error.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace convoy {

/// Thread-safe.
class FailureLatch {
 public:
  /// True if this was the first one. Calls the subscribers before it returns.
  bool set(const Error& error);
  bool is_set() const noexcept { return is_set_.load(std::memory_order_acquire); }
  std::optional<Error> get() const;
  /// As Session::on_failure. Once the handle is destroyed, `notify` is not running and will not
  /// run; the destructor waits for it if need be, except within `notify` itself.
  std::shared_ptr<void> subscribe(std::function<void()> notify);

 private:
  // One subscription. Recursive, so that `notify` may drop its own handle.
  struct Entry {
    std::recursive_mutex mutex;
    std::function<void()> notify;
    void fire();
  };

  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // Does not change any more once is_set_.
  std::vector<std::weak_ptr<Entry>> entries_;
};

}  // namespace convoy
