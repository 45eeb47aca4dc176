// A ring of spans.
#include "convoy/profile/trace_recorder.h"

#include "convoy/base/check.h"

#include <utility>

namespace convoy::profile {

TraceRecorder::TraceRecorder(std::size_t capacity) : capacity_(capacity) {
  CONVOY_REQUIRE(capacity > 0, kInvalidArgument, "a trace recorder needs room for a span");
}

void TraceRecorder::record(trace::Event event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < capacity_) {
    events_.push_back(std::move(event));
    return;
  }
  events_[oldest_] = std::move(event);
  oldest_ = (oldest_ + 1) % capacity_;
  ++forgotten_;
}

std::vector<trace::Event> TraceRecorder::events() const {
  const std::lock_guard lock(mutex_);
  const auto middle = events_.begin() + static_cast<std::ptrdiff_t>(oldest_);
  std::vector<trace::Event> ordered(middle, events_.end());
  ordered.insert(ordered.end(), events_.begin(), middle);
  return ordered;
}

std::uint64_t TraceRecorder::forgotten() const {
  const std::lock_guard lock(mutex_);
  return forgotten_;
}

}  // namespace convoy::profile
