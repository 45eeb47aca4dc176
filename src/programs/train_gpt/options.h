// What the command line of train_gpt says.
#pragma once

#include "programs/train_gpt/model_config.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::train_gpt {

enum class StrategyKind { kSingle, kDdp, kZero1, kFsdp };

/// "single", "ddp", "zero1", "fsdp".
std::string_view to_string(StrategyKind kind) noexcept;

struct Options {
  std::optional<StrategyKind> strategy;  ///< Absent: single at world 1, else ddp.
  std::string model;
  ModelConfig config;
  std::vector<std::string> data;
  std::optional<std::int64_t> global_batch;  ///< Absent: micro_batch on every rank.
  std::int64_t micro_batch = 0;
  std::int64_t steps = 0;  ///< Of the whole training; 0 trains nothing.
  double lr = 0;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  double weight_decay = 0;
  double clip = 0;  ///< 0: off.
  std::uint64_t seed = 0;
  std::optional<int> threads;       ///< Absent: what OMP_NUM_THREADS or the machine gives.
  std::optional<double> bucket_mb;  ///< Absent: DDP's own default.
  bool checkpoint = false;          ///< Blocks run again in backward and keep no activations.
  bool reshard_after_forward = true;
  bool shared_gather = true;
  std::int64_t eval_every = 0;  ///< 0: only at the end.
  std::int64_t eval_windows = 0;
  std::int64_t sample = 0;  ///< Bytes to write at the end.
  std::string prompt;
  std::string json;             ///< Empty: none.
  std::string trace;            ///< File or folder; empty: none.
  std::string save;             ///< Folder; empty: none.
  std::int64_t save_every = 0;  ///< Steps; 0: only at the end.
  std::string resume;           ///< Folder; empty: from the beginning.
  std::chrono::nanoseconds timeout{};
};

/// The flags that were given and that a strategy does not look at, as they are written.
std::vector<std::string> flags_without_effect(const Options& options, StrategyKind strategy);

/// Help or version text to print instead of training, or options. Every value is checked as far as
/// it can be without data and without the other ranks.
/// Errors: kInvalidArgument: one line, with the nearest right name where there is one.
struct ParsedCommandLine {
  std::optional<std::string> text;
  Options options;
};
ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace convoy::train_gpt
