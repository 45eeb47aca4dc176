// Begins, checks and ends the runs of units' forwards.
#include "forward_runs.h"

#include "convoy/base/check.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace convoy::fsdp {

ForwardRun ForwardRuns::begin(std::size_t unit, bool in_backward,
                              const std::function<void(std::size_t)>& take_accumulators) {
  if (open_.empty()) ended_.clear();
  if (open_.empty() && !in_backward) gatherer_.begin_model();
  ForwardRun run;
  run.unit = unit;
  run.depth = open_.size();
  run.in_backward = in_backward;
  run.was_full = groups_[unit].state() == UnitState::kFull;
  if (in_backward) {
    gatherer_.for_backward(unit, [](std::size_t) { return false; });
  } else {
    gatherer_.for_forward(unit, /*alone=*/open_.empty() && !groups_[unit].is_root());
  }
  take_accumulators(unit);
  run.graph = at::GradMode::is_enabled();
  run.first_sequence = at::sequence_number::peek();
  if (run.graph) {
    for (const auto& leaf : groups_[unit].param().leaves()) {
      run.uses.push_back(leaf.accumulator ? leaf.accumulator.use_count() : 0);
    }
  }
  open_.push_back(unit);
  run.begin_ns = trace::now_ns();
  return run;
}

bool ForwardRuns::is_open(std::size_t unit) const {
  return std::find(open_.begin(), open_.end(), unit) != open_.end();
}

void ForwardRuns::check_edges(const ForwardRun& run, const GraphPart& part) const {
  std::vector<std::size_t> found(run.uses.size());
  for (const AccumulatorEdge& edge : part.accumulator_edges) {
    const auto owner = owners_.find(edge.accumulator);
    if (owner == owners_.end()) continue;  // a leaf that is no parameter
    const auto [unit, leaf] = owner->second;
    if (unit == run.unit) ++found[leaf];
    const bool in_own_run =
        is_open(unit) || std::any_of(ended_.begin(), ended_.end(), [&](const Range& range) {
          return range.unit == unit && range.begin <= edge.from_sequence &&
                 edge.from_sequence < range.end;
        });
    CONVOY_REQUIRE(in_own_run, kMisuse, "FSDP: parameter '",
                   groups_[unit].param().leaves()[leaf].name, "' was used outside of unit ",
                   groups_[unit].name(), "'s forward, where it is only a shard. Call the unit ",
                   "through its own type (module->as<Block>()->forward(x) with Block = Unit<...>), "
                   "not through the plain module or a part of it");
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& leaf = groups_[run.unit].param().leaves()[i];
    const std::size_t uses = leaf.accumulator ? leaf.accumulator.use_count() : 0;
    CONVOY_REQUIRE(uses <= run.uses[i] + found[i], kMisuse, "FSDP: a tensor computed from '",
                   leaf.name, "' left unit ", groups_[run.unit].name(),
                   " without being returned by its forward (kept as a member?). Its backward would "
                   "find only a shard; return it, or keep it detached");
  }
}

std::vector<Node*> ForwardRuns::finish(const ForwardRun& run,
                                       const std::vector<at::Tensor>& outputs) {
  GraphPart part;
  if (run.graph) {
    part = walk_graph(outputs, run.first_sequence);
    check_edges(run, part);
  }
  open_.resize(run.depth);
  ended_.push_back({run.unit, run.first_sequence, at::sequence_number::peek()});
  if (run.in_backward) {
    // A recomputation with gradients: its nodes run next and want the unit full.
    if (!run.graph && !run.was_full) gatherer_.reshard(run.unit);
  } else if (!run.was_full) {
    gatherer_.after_forward(run.unit, run.graph);
    if (open_.empty()) gatherer_.end_model();
  }
  return std::move(part.nodes);
}

void ForwardRuns::abandon(const ForwardRun& run) noexcept {
  open_.resize(std::min(open_.size(), run.depth));
  if (run.was_full || groups_[run.unit].state() != UnitState::kFull) return;
  try {
    gatherer_.reshard(run.unit);
  } catch (const std::exception&) {
    groups_[run.unit].reset();  // a leaf was moved; the exception on its way says more
  }
}

}  // namespace convoy::fsdp
