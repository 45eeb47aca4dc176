// Matches reductions with the backward passes they began in.
#include "convoy/profile/overlap.h"

#include <algorithm>

namespace convoy::profile {

void OverlapMeter::record(trace::Event event) {
  const std::lock_guard lock(mutex_);
  if (!is_listening_) return;
  if (event.name == "backward") {
    passes_.push_back({event.begin_ns, event.end_ns});
  } else if (event.category == "comm" &&
             (event.name == "all_reduce" || event.name == "reduce_scatter")) {
    reductions_.push_back({event.begin_ns, event.bytes});
  }
}

void OverlapMeter::listen(bool on) {
  const std::lock_guard lock(mutex_);
  is_listening_ = on;
}

void OverlapMeter::end_step() {
  const std::lock_guard lock(mutex_);
  for (const Reduction& reduction : reductions_) {
    const bool overlaps =
        std::any_of(passes_.begin(), passes_.end(), [&reduction](const Pass& pass) {
          return pass.begin_ns <= reduction.begin_ns && reduction.begin_ns < pass.end_ns;
        });
    all_bytes_ += reduction.bytes;
    if (overlaps) overlapped_bytes_ += reduction.bytes;
  }
  reductions_.clear();
  passes_.clear();
}

std::optional<double> OverlapMeter::share() const {
  const std::lock_guard lock(mutex_);
  if (all_bytes_ == 0) return std::nullopt;
  return static_cast<double>(overlapped_bytes_) / static_cast<double>(all_bytes_);
}

}  // namespace convoy::profile
