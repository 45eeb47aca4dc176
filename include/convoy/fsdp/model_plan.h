// What FSDP would make of a model, found before anything is allocated or any rank is asked.
#pragma once

#include "convoy/flat/memory_plan.h"
#include "convoy/fsdp/options.h"
#include "convoy/fsdp/unit_summary.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// What one rule of the policy says about the units of the model.
struct RuleReport {
  std::string description;
  std::vector<std::string> hits;
  std::vector<std::string> misses;
  bool may_miss = false;  ///< If false, no hit at all is an error at wrapping.
};

struct ModelPlan {
  int world = 1;
  bool shared_gather = true;       ///< As asked for; used where all ranks share memory.
  std::string policy;              ///< As it was written.
  std::vector<UnitSummary> units;  ///< resident_bytes is 0.
  std::vector<RuleReport> rules;
  std::vector<std::string> ignored;  ///< Parameters.
  std::vector<MemoryPlan> memory;    ///< By rank.

  /// As a table for people.
  std::string describe() const;
};

/// Plans `model` for `world` ranks, for an optimizer that keeps `optimizer_states` values for every
/// element. Allocates nothing and asks nobody; parameters may be on the meta device. Errors: those
/// of wrapping but for rules that match nothing, which the plan shows.
ModelPlan plan_model(const torch::nn::Module& model, int world, const Options& options = {},
                     int optimizer_states = kAdamStates);

/// plan_model(...).describe(): units, parameters, bytes of a rank, padding, hits and misses of each
/// rule, predicted memory.
std::string describe(const torch::nn::Module& model, int world, const Options& options = {});

/// The predicted memory of one rank.
MemoryPlan plan_memory(const torch::nn::Module& model, int world, int rank,
                       const Options& options = {}, int optimizer_states = kAdamStates);

}  // namespace convoy::fsdp
