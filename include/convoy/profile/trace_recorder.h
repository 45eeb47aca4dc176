// Keeps the newest spans of one rank, within a fixed amount of memory.
#pragma once

#include "convoy/base/trace.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace convoy::profile {

/// A trace sink that forgets the oldest span once it is full, so that a run of any length can be
/// recorded: what led up to its end is what one looks for. A span takes some 150 bytes.
/// Thread-safe.
class TraceRecorder final : public trace::Sink {
 public:
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16;

  /// `capacity` in spans. Error: kInvalidArgument if it is 0.
  explicit TraceRecorder(std::size_t capacity = kDefaultCapacity);

  void record(trace::Event event) override;

  /// A copy of what is kept, oldest first in order of recording.
  std::vector<trace::Event> events() const;
  /// How many spans had to make room for newer ones.
  std::uint64_t forgotten() const;

 private:
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::vector<trace::Event> events_;
  std::size_t oldest_ = 0;  ///< Where the next one goes once all places are taken.
  std::uint64_t forgotten_ = 0;
};

}  // namespace convoy::profile
