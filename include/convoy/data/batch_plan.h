// How a global batch is divided over ranks and micro-batches. Pure: numbers only.
#pragma once

#include <cstdint>

namespace convoy::data {

/// One optimizer step trains `global_batch` windows. Rank r takes the contiguous part
/// [r * rows_per_rank, (r + 1) * rows_per_rank) and works through it in micro-batches.
struct BatchPlan {
  std::int64_t global_batch;
  std::int64_t micro_batch;    ///< Windows of one rank in one forward.
  std::int64_t rows_per_rank;  ///< global_batch / world.
  std::int64_t micro_steps;    ///< rows_per_rank / micro_batch: 1 means no accumulation.

  /// The first window of `rank` in step `step` (from 1), counted over the whole training.
  std::int64_t first_window(std::int64_t step, int rank) const {
    return (step - 1) * global_batch + rank * rows_per_rank;
  }
};

/// Errors: kInvalidArgument, saying which batch would divide.
BatchPlan plan_batch(std::int64_t global_batch, std::int64_t micro_batch, int world);

/// The held-out windows that one rank evaluates: equal numbers of equal micro-batches on all ranks,
/// the last ones filled up with rows that do not count.
struct EvaluationPlan {
  std::int64_t windows;
  std::int64_t micro_batch;
  std::int64_t micro_steps;  ///< On every rank.
  int world;

  /// The window of row `row` in micro-batch `micro_step` of `rank`, or -1 for a row to be padded.
  /// Every window comes once.
  std::int64_t window(std::int64_t micro_step, int rank, std::int64_t row) const;
};

EvaluationPlan plan_evaluation(std::int64_t windows, std::int64_t micro_batch, int world);

}  // namespace convoy::data
