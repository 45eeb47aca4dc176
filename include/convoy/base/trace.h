// Spans of time for a timeline. Nothing is recorded, and nothing is paid, where no sink was given.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::trace {

/// One finished span. Times are nanoseconds of the monotonic clock, comparable within a machine.
struct Event {
  std::string name;      ///< What, for example "all_reduce" or "backward".
  std::string detail;    ///< Which, for example the bucket or unit name; may be empty.
  std::string category;  ///< Row of the timeline: "compute", "comm", "wait", "optimizer", "data".
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;
};

/// Takes finished spans. Implementations are thread-safe.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void record(Event event) = 0;
};

/// Keeps all events in memory, for tests and reports.
class MemorySink final : public Sink {
 public:
  void record(Event event) override;
  /// A copy of what was recorded so far, in order of recording.
  std::vector<Event> events() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

/// Monotonic nanoseconds, the clock of all events.
std::int64_t now_ns() noexcept;

/// Records the time between construction and destruction. Does nothing for a null sink.
class Span {
 public:
  Span(Sink* sink, std::string_view name, std::string_view category, std::string_view detail = {},
       std::int64_t bytes = 0);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Sink* sink_;
  Event event_;
};

}  // namespace convoy::trace
