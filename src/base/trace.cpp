// Records spans of time into a sink.
#include "convoy/base/trace.h"

#include <chrono>

namespace convoy::trace {

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void MemorySink::record(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<Event> MemorySink::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

Span::Span(Sink* sink, std::string_view name, std::string_view category, std::string_view detail,
           std::int64_t bytes)
    : sink_(sink) {
  if (sink_ == nullptr) return;
  event_ = {std::string(name), std::string(detail), std::string(category), now_ns(), 0, bytes};
}

Span::~Span() {
  if (sink_ == nullptr) return;
  event_.end_ns = now_ns();
  sink_->record(std::move(event_));
}

}  // namespace convoy::trace
