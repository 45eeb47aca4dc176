// The loss on the held-out text.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/data/batch_plan.h"
#include "convoy/data/token_windows.h"
#include "programs/train_gpt/strategy.h"

namespace convoy::train_gpt {

struct Evaluation {
  double loss;           ///< Mean over all held-out tokens, in nats; each window counts once.
  std::int64_t windows;  ///< That were counted.
};

/// Collective. The sums are in float64, so that the loss depends on the world size only by the
/// rounding of single rows.
Evaluation evaluate(Strategy& strategy, Communicator& comm, const data::TokenWindows& windows,
                    const data::EvaluationPlan& plan);

}  // namespace convoy::train_gpt
