// A point in time until which an operation may wait. Every wait in Convoy takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace convoy {

/// A monotonic point in time. A value; compare and copy freely.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  static Deadline after(Duration timeout) {
    const auto now = Clock::now();
    return Deadline(timeout > Clock::time_point::max() - now ? Clock::time_point::max()
                                                             : now + timeout);
  }
  static Deadline at(Clock::time_point point) { return Deadline(point); }

  bool expired() const { return Clock::now() >= point_; }
  /// Time left, never negative.
  Duration remaining() const { return std::max(Duration::zero(), Duration(point_ - Clock::now())); }
  Clock::time_point point() const { return point_; }
  /// The earlier of this and `timeout` from now: for waiting in slices.
  Deadline sooner(Duration timeout) const { return at(std::min(point_, after(timeout).point_)); }

 private:
  explicit Deadline(Clock::time_point point) : point_(point) {}
  Clock::time_point point_;
};

}  // namespace convoy
