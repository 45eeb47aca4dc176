// What a run cost, summed over its steps and gathered from all ranks.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/profile/memory_report.h"
#include "programs/train_gpt/step.h"
#include "programs/train_gpt/strategy.h"

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::train_gpt {

/// Communication and memory of the steps so far, on this rank.
class Totals {
 public:
  void add(const StepResult& step);

  const CommStats& comm() const noexcept { return comm_; }
  std::int64_t steps() const noexcept { return steps_; }
  /// The memory of this rank as it is now, with the highest parts of the steps.
  profile::MemoryReport memory(Strategy& strategy, const torch::optim::Optimizer& optimizer) const;

 private:
  CommStats comm_;
  std::int64_t steps_ = 0;
  std::int64_t gradient_bytes_ = 0;
  std::int64_t activation_bytes_ = 0;
};

/// Of all ranks in rank order. Collective.
std::vector<profile::MemoryReport> gather_memory(const profile::MemoryReport& mine,
                                                 Communicator& comm);

/// Mean of one step and one rank, by operation; operations that never ran are left out. Collective.
struct MeanOpStats {
  OpKind kind;
  double calls, payload_bytes, copied_bytes, wire_bytes, wait_s;
};
std::vector<MeanOpStats> mean_comm(const Totals& totals, Communicator& comm);

/// XXH3-64 over the names and float32 bytes of the full parameters in registration order, as 16 hex
/// digits; empty on ranks other than 0. Collective.
std::string parameters_xxh3(Strategy& strategy);

}  // namespace convoy::train_gpt
