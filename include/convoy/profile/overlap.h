// How much of the communication of a backward pass began before the pass had ended.
#pragma once

#include "convoy/base/trace.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace convoy::profile {

/// A trace sink that keeps sums only. It takes the "backward" spans of DDP and FSDP and the
/// communicator's spans of reductions ("all_reduce", "reduce_scatter"); a reduction that began
/// within a backward span overlaps with it. It listens only when told to, so that reductions of
/// other things (a loss, a norm) do not count. Thread-safe.
class OverlapMeter final : public trace::Sink {
 public:
  void record(trace::Event event) override;

  /// What is recorded from now on counts, or does not. At first nothing does.
  void listen(bool on);
  /// Adds up what was recorded since the last call: between two steps, when nothing is in flight.
  void end_step();
  /// Bytes whose reduction began before backward's last gradient was ready, over all bytes reduced
  /// in the steps that have ended; nothing when there were none.
  std::optional<double> share() const;

 private:
  struct Reduction {
    std::int64_t begin_ns;
    std::int64_t bytes;
  };
  struct Pass {
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };

  mutable std::mutex mutex_;
  bool is_listening_ = false;
  std::vector<Reduction> reductions_;
  std::vector<Pass> passes_;
  std::int64_t overlapped_bytes_ = 0;
  std::int64_t all_bytes_ = 0;
};

}  // namespace convoy::profile
