// Layouts without buffers: the arithmetic of wrapping.
#include "convoy/fsdp/model_plan.h"

#include "convoy/base/check.h"
#include "grad_buffers.h"
#include "precision_plan.h"
#include "unit_plan.h"
#include "unit_table.h"

#include <algorithm>
#include <set>

namespace convoy::fsdp {
namespace {

struct PlannedLayouts {
  UnitPlan plan;
  PrecisionPlan precision;
  std::vector<FlatLayout> layouts;  ///< By unit.
};

PlannedLayouts plan_layouts(const torch::nn::Module& model, int world, const Options& options) {
  CONVOY_REQUIRE(world >= 1, kInvalidArgument, "FSDP: a plan for ", world, " ranks");
  UnitPlan plan = plan_units(model, options.wrap, options.ignored,
                             {.misses = true, .meta = true, .wrapped = false});
  require_kept_units(plan, options.reshard_after_forward);
  PrecisionPlan precision = plan_precision(model, plan, options.mixed_precision);
  std::vector<FlatLayout> layouts;
  for (const PlannedUnit& unit : plan.units) layouts.push_back(layout_of(unit, world));
  return {std::move(plan), std::move(precision), std::move(layouts)};
}

bool trains(const PlannedUnit& unit) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                     [](const auto& parameter) { return parameter.tensor.requires_grad(); });
}

std::int64_t bytes_of(at::ScalarType dtype, std::int64_t numel) {
  return static_cast<std::int64_t>(c10::elementSize(dtype)) * numel;
}

// The root, the units that stay until backward, and the two largest of the others, each with its
// frozen part.
std::int64_t full_bytes_at_most(const PlannedLayouts& planned,
                                const ReshardAfterForward& reshards) {
  std::int64_t stay = 0;
  std::vector<std::int64_t> others(planned.plan.units.size());
  for (std::size_t u = 0; u < planned.layouts.size(); ++u) {
    const PlannedUnit& unit = planned.plan.units[u];
    const std::size_t main = unit.part_of >= 0 ? static_cast<std::size_t>(unit.part_of) : u;
    const std::int64_t bytes =
        bytes_of(planned.precision.units[u].compute_dtype, planned.layouts[u].total_numel());
    const PlannedUnit& owner = planned.plan.units[main];
    (owner.is_root || !reshards(owner.key()) ? stay : others[main]) += bytes;
  }
  std::sort(others.begin(), others.end(), std::greater<>());
  others.resize(std::max<std::size_t>(others.size(), 2));
  return stay + others[0] + others[1];
}

MemoryPlan memory_of(const PlannedLayouts& planned, const torch::nn::Module& model, int rank,
                     const Options& options, int optimizer_states) {
  const auto& [plan, precision, layouts] = planned;
  MemoryPlan memory;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    for (std::size_t i = 0; i < plan.units[u].parameters.size(); ++i) {
      const std::int64_t bytes = bytes_of(plan.dtype, piece_of(layouts[u], i, rank).numel);
      memory.parameters += bytes;
      if (plan.units[u].parameters[i].tensor.requires_grad()) memory.gradients += bytes;
    }
    const bool mixed = precision.units[u].compute_dtype != plan.dtype;
    if (mixed) {
      memory.cast_parameters += bytes_of(precision.units[u].compute_dtype, layouts[u].slice_numel);
    }
  }
  memory.optimizer = memory.gradients * optimizer_states;
  for (const auto& buffer : model.named_buffers()) {
    memory.buffers += static_cast<std::int64_t>(buffer.value().nbytes());
  }
  if (!options.shared_gather) {
    memory.full_parameters = full_bytes_at_most(planned, options.reshard_after_forward);
  }
  std::vector<std::int64_t> numels;
  std::vector<bool> fills_long(layouts.size());
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    numels.push_back(trains(plan.units[u]) ? layouts[u].total_numel() : 0);
    if (plan.units[u].parent >= 0)
      fills_long[static_cast<std::size_t>(plan.units[u].parent)] = true;
  }
  for (const std::int64_t numel :
       plan_grad_buffers(numels, fills_long, grad_buffer_turns(options.shared_gather))) {
    memory.gradient_buffers += bytes_of(precision.reduce_dtype, numel);
  }
  return memory;
}

UnitSummary summary_of(const PlannedLayouts& planned, std::size_t u) {
  const FlatLayout& layout = planned.layouts[u];
  return {.name = planned.plan.units[u].name,
          .parameters = static_cast<std::int64_t>(planned.plan.units[u].parameters.size()),
          .numel = layout.parameter_numel,
          .padding_numel = layout.padding_numel(),
          .shard_bytes = bytes_of(planned.plan.dtype, layout.slice_numel),
          .full_bytes = bytes_of(planned.precision.units[u].compute_dtype, layout.total_numel()),
          .resident_bytes = 0,
          .cut_at_rows = layout.cut == CutRule::kRows,
          .trainable = trains(planned.plan.units[u])};
}

RuleReport report_of(const RuleHits& rule, const std::vector<std::string>& unit_names) {
  RuleReport report{
      .description = rule.description, .hits = rule.units, .misses = {}, .may_miss = rule.may_miss};
  const std::set<std::string> hits(rule.units.begin(), rule.units.end());
  for (const std::string& name : unit_names) {
    if (!hits.contains(name)) report.misses.push_back(name);
  }
  return report;
}

}  // namespace

ModelPlan plan_model(const torch::nn::Module& model, int world, const Options& options,
                     int optimizer_states) {
  const PlannedLayouts planned = plan_layouts(model, world, options);
  ModelPlan result{.world = world,
                   .shared_gather = options.shared_gather,
                   .policy = options.wrap.description(),
                   .units = {},
                   .rules = {},
                   .ignored = {},
                   .memory = {}};
  for (std::size_t u = 0; u < planned.layouts.size(); ++u) {
    result.units.push_back(summary_of(planned, u));
  }
  for (const RuleHits& rule : planned.plan.choice.rules) {
    result.rules.push_back(report_of(rule, planned.plan.choice.unit_names));
  }
  for (const auto& [name, tensor] : planned.plan.ignored) result.ignored.push_back(name);
  for (int rank = 0; rank < world; ++rank) {
    result.memory.push_back(memory_of(planned, model, rank, options, optimizer_states));
  }
  return result;
}

std::string ModelPlan::describe() const {
  std::string text = unit_table(concat("FSDP plan: ", units.size(), " units over ", world,
                                       " ranks, ", shared_gather ? "shared" : "private", " gather"),
                                units);
  text += "  policy " + policy + "\n";
  for (const RuleReport& rule : rules) {
    text += concat("    ", rule.description, ": ", rule.hits.size(), " units");
    if (!rule.hits.empty()) text += " (" + quoted_list(rule.hits) + ")";
    if (!rule.misses.empty()) text += ", not " + quoted_list(rule.misses);
    text += rule.hits.empty() && !rule.may_miss ? ": an error at wrapping\n" : "\n";
  }
  if (!ignored.empty()) text += "  ignored parameters: " + quoted_list(ignored) + "\n";
  const auto most = std::max_element(
      memory.begin(), memory.end(),
      [](const MemoryPlan& a, const MemoryPlan& b) { return a.total() < b.total(); });
  return text + "  memory of a rank at most, without activations: " + to_string(*most) + "\n";
}

std::string describe(const torch::nn::Module& model, int world, const Options& options) {
  return plan_model(model, world, options).describe();
}

MemoryPlan plan_memory(const torch::nn::Module& model, int world, int rank, const Options& options,
                       int optimizer_states) {
  CONVOY_REQUIRE(0 <= rank && rank < world, kInvalidArgument, "FSDP: rank ", rank, " of ", world);
  return memory_of(plan_layouts(model, world, options), model, rank, options, optimizer_states);
}

}  // namespace convoy::fsdp
