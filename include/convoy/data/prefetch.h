// Makes items ahead of their use in one background thread.
#pragma once

#include "convoy/base/check.h"
#include "convoy/base/deadline.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace convoy::data {

/// Calls `make(index)` for index 0, 1, ... count - 1 in a thread of its own, at most `depth` items
/// ahead of the reader, and hands the items out in order. An exception of `make` comes out of the
/// next() that would have returned its item, and of every later one.
/// Thread rule: one reader. The destructor stops the thread after the item it is at.
template <typename Item>
class Prefetcher {
 public:
  Prefetcher(std::function<Item(std::int64_t)> make, std::int64_t count, std::size_t depth = 2)
      : make_(std::move(make)), count_(count), depth_(depth) {
    CONVOY_REQUIRE(count >= 0 && depth >= 1, kInvalidArgument,
                   "a prefetcher needs a count of at least 0 and a depth of at least 1, got ",
                   count, " and ", depth);
    thread_ = std::jthread([this](std::stop_token stop) { produce(stop); });
  }

  /// The next item. Errors: kMisuse after the last one; kTimeout when it does not come in time.
  Item next(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_until(lock, deadline.point(), [this] { return !ready_.empty() || ended_; });
    CONVOY_REQUIRE(came, kTimeout, "the loader did not deliver the next batch in time: ",
                   "is the disk or network share with the data still there?");
    if (ready_.empty()) {
      if (failure_ != nullptr) std::rethrow_exception(failure_);
      throw Error(ErrorKind::kMisuse, concat("all ", count_, " items have been taken"));
    }
    Item item = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return item;
  }

 private:
  void produce(const std::stop_token& stop) {
    try {
      for (std::int64_t index = 0; index < count_; ++index) {
        if (!wait_for_room(stop)) break;
        Item item = make_(index);
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(item));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  /// False when the prefetcher is being destroyed.
  bool wait_for_room(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    return changed_.wait(lock, stop, [this] { return ready_.size() < depth_; }) &&
           !stop.stop_requested();
  }

  std::function<Item(std::int64_t)> make_;
  std::int64_t count_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Item> ready_;
  std::exception_ptr failure_;
  bool ended_ = false;
  std::jthread thread_;  // Last: stopped and joined before what it uses goes.
};

}  // namespace convoy::data
