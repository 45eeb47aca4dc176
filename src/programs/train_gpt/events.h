// The lines of the --json file. Pure: values in, JSON out.
#pragma once

#include "convoy/base/error.h"
#include "convoy/data/batch_plan.h"
#include "programs/train_gpt/evaluate.h"
#include "programs/train_gpt/json_line.h"
#include "programs/train_gpt/options.h"
#include "programs/train_gpt/totals.h"

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::train_gpt {

/// What is known before the first step.
struct StartFacts {
  StrategyKind strategy;
  int world;
  int threads;
  std::int64_t parameters;
  data::BatchPlan plan;
  std::vector<std::string> data_paths;
  std::int64_t data_bytes;
  std::string data_xxh3;  ///< 16 hex digits.
  std::int64_t validation_windows;
  double unigram_nats;  ///< Of the held-out text.
};

/// One step, with values of the whole job.
struct StepFacts {
  std::int64_t step;  ///< From 1.
  float loss;         ///< Mean over the global batch.
  double lr;
  std::optional<double> grad_norm;
  double step_s, optimizer_s, data_s, comm_wait_s;  ///< Of rank 0.
  double optimizer_wait_s;  ///< What optimizer_s and comm_wait_s have in common.
  std::int64_t tokens;      ///< In the global batch.
};

struct EndFacts {
  std::int64_t step;
  float loss;
  double validation_loss;
  std::string params_xxh3;
  std::vector<MeanOpStats> comm;
  std::optional<double> overlap_share;
  std::vector<profile::MemoryReport> memory;
  double seconds;  ///< From the start event on.
};

JsonLine start_event(const StartFacts& facts, const Options& options);
JsonLine step_event(const StepFacts& facts);
JsonLine eval_event(std::int64_t step, const Evaluation& evaluation);
JsonLine save_event(std::int64_t step, std::string_view path);
JsonLine end_event(const EndFacts& facts);
/// `rank` is the rank to blame.
JsonLine error_event(int rank, std::string_view kind, std::string_view message);

}  // namespace convoy::train_gpt
