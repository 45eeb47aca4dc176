// One optimizer step: micro-batches, clipping, update; with what it took.
#pragma once

#include "convoy/base/trace.h"
#include "convoy/data/batch_plan.h"
#include "convoy/data/token_windows.h"
#include "convoy/profile/counting_allocator.h"
#include "convoy/profile/overlap.h"
#include "programs/train_gpt/strategy.h"

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>

namespace convoy::train_gpt {

/// Of one step, on this rank.
struct StepResult {
  double loss = 0;                    ///< Mean over this rank's windows.
  std::optional<double> grad_norm;    ///< Of the whole model, before clipping; absent without it.
  double step_s = 0;                  ///< From batch in hand to after zero_grad.
  double optimizer_s = 0;             ///< Part of step_s: clipping, update and zero_grad.
  double optimizer_wait_s = 0;        ///< Part of optimizer_s: waiting for other ranks.
  CommStats comm;                     ///< Operations of this step.
  std::int64_t gradient_bytes = 0;    ///< On the leaves when the optimizer stepped.
  std::int64_t activation_bytes = 0;  ///< The most that one forward held.
};

/// Runs steps. Keeps references: what it is given must outlive it. Phases go to `trace` as spans,
/// where it is not null.
class Stepper {
 public:
  Stepper(Strategy& strategy, Communicator& comm, torch::optim::Optimizer& optimizer,
          profile::AllocationCounter& allocations, profile::OverlapMeter& overlap,
          const data::BatchPlan& plan, double max_norm, trace::Sink* trace = nullptr);

  /// Trains on this rank's part of one global batch. Collective.
  StepResult run(const data::TokenBatch& batch);

 private:
  /// Forward and backward of one micro-batch; returns its mean loss.
  float train_micro_batch(const data::TokenBatch& batch, std::int64_t micro_step,
                          StepResult& result);

  Strategy& strategy_;
  Communicator& comm_;
  torch::optim::Optimizer& optimizer_;
  profile::AllocationCounter& allocations_;
  profile::OverlapMeter& overlap_;
  data::BatchPlan plan_;
  double max_norm_;
  trace::Sink* trace_;
};

}  // namespace convoy::train_gpt
