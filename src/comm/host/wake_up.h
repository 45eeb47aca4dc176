// Sleeping until a peer has news, and waking peers that sleep.
#pragma once

#include "comm/host/control_page.h"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace convoy {

// Note [No wake-up is lost]
// A rank that publishes stores its counter first and then looks at the peer's `sleeping`. A rank
// that goes to sleep counts itself into `sleeping` first and then looks at the peers' counters once
// more. With sequentially consistent order at least one of the two sees the other. The bell is read
// before that last look, so a ring in between makes the sleep end at once.

/// Wakes the threads of `block`'s rank if any sleeps. A load when none does.
void ring_if_asleep(RankBlock& block) noexcept;
/// Wakes them in any case.
void ring(RankBlock& block) noexcept;

/// Counts the calling thread among the sleepers of its rank, from construction to destruction.
/// Between the construction and sleep() the caller looks once more at what it waits for.
class Sleeper {
 public:
  explicit Sleeper(RankBlock& block) noexcept;
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  /// Until the bell rings (also if it has rung since construction), at most `longest`.
  void sleep(std::chrono::nanoseconds longest) noexcept;

 private:
  RankBlock& block_;
  std::uint32_t bell_;
};

}  // namespace convoy
