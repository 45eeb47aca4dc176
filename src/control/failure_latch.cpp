// Sets the first failure and runs the subscriptions, outside of the latch's own lock.
#include "control/failure_latch.h"

#include <utility>

namespace convoy {

void FailureLatch::Entry::fire() {
  const std::lock_guard lock(mutex);
  // Moved out first: it runs once, and may drop its own handle while it runs.
  if (const auto call = std::exchange(notify, nullptr)) call();
}

bool FailureLatch::set(const Error& error) {
  std::vector<std::weak_ptr<Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = error;
    is_set_.store(true, std::memory_order_release);
    entries = std::move(entries_);
  }
  for (const auto& weak : entries) {
    if (const auto entry = weak.lock()) entry->fire();
  }
  return true;
}

std::optional<Error> FailureLatch::get() const {
  if (!is_set()) return std::nullopt;
  return error_;
}

std::shared_ptr<void> FailureLatch::subscribe(std::function<void()> notify) {
  const auto entry = std::make_shared<Entry>();
  entry->notify = std::move(notify);
  // The handle owns the entry and disarms it at the end.
  std::shared_ptr<void> handle(entry.get(), [entry](void*) {
    const std::lock_guard lock(entry->mutex);
    entry->notify = nullptr;
  });
  {
    const std::lock_guard lock(mutex_);
    if (!error_) {
      std::erase_if(entries_, [](const auto& weak) { return weak.expired(); });
      entries_.push_back(entry);
      return handle;
    }
  }
  entry->fire();
  return handle;
}

}  // namespace convoy
