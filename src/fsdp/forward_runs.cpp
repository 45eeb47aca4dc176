// Begins, checks and ends the runs of units' forwards.
#include "forward_runs.h"

#include "convoy/base/check.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace convoy::fsdp {

void ForwardRuns::require_lenders_full(std::size_t unit) const {
  for (const std::size_t lender : groups_[unit].borrows_from()) {
    CONVOY_REQUIRE(groups_[lender].state() == UnitState::kFull, kMisuse, "FSDP: forward of unit ",
                   groups_[unit].name(), " outside of unit ", groups_[lender].name(),
                   "'s, which holds a parameter that is tied to one in it: run it inside the "
                   "forward of that unit");
  }
}

ForwardRun ForwardRuns::begin(std::size_t unit, std::size_t module, bool in_backward,
                              const std::function<void(std::size_t)>& take_accumulators) {
  if (open_.empty()) ended_.clear();
  if (open_.empty() && !in_backward) gatherer_.begin_model();
  require_lenders_full(unit);
  ForwardRun run;
  run.unit = unit;
  run.module = module;
  run.depth = open_.size();
  run.in_backward = in_backward;
  Round& round = rounds_[unit];
  const bool is_full = groups_[unit].state() == UnitState::kFull;
  run.was_full = is_full && !(round.waits && !in_backward);
  if (!is_full) round.ran.assign(groups_[unit].modules(), false);
  round.waits = false;
  if (in_backward) {
    const auto none = [](std::size_t) { return false; };
    gatherer_.for_backward(unit, /*wanted=*/none, /*done=*/none);
  } else {
    gatherer_.for_forward(unit, /*alone=*/open_.empty() && !groups_[unit].is_root());
  }
  for_each_part(groups_, unit, take_accumulators);
  run.graph = at::GradMode::is_enabled();
  run.first_sequence = at::sequence_number::peek();
  if (run.graph) {
    for_each_part(groups_, unit, [&](std::size_t part) {
      for (const auto& leaf : groups_[part].param().leaves()) {
        run.uses.push_back(leaf.accumulator ? leaf.accumulator.use_count() : 0);
      }
    });
  }
  open_.push_back(unit);
  run.begin_ns = trace::now_ns();
  return run;
}

bool ForwardRuns::is_open(std::size_t unit) const {
  return std::find(open_.begin(), open_.end(), unit) != open_.end();
}

bool ForwardRuns::trains(std::size_t unit) const {
  bool trains = false;
  for_each_part(groups_, unit,
                [&](std::size_t part) { trains = trains || groups_[part].trainable(); });
  return trains;
}

void ForwardRuns::check_edges(const ForwardRun& run, const GraphPart& part) const {
  const std::size_t own_leaves = groups_[run.unit].param().leaves().size();
  std::vector<std::size_t> found(run.uses.size());
  for (const AccumulatorEdge& edge : part.accumulator_edges) {
    const auto owner = owners_.find(edge.accumulator);
    if (owner == owners_.end()) continue;  // a leaf that is no parameter
    const auto [group, leaf] = owner->second;
    const std::size_t unit = main_part(groups_, group);
    if (unit == run.unit) ++found[group == unit ? leaf : own_leaves + leaf];
    const bool in_own_run =
        is_open(unit) || std::any_of(ended_.begin(), ended_.end(), [&](const Range& range) {
          return range.unit == unit && range.begin <= edge.from_sequence &&
                 edge.from_sequence < range.end;
        });
    CONVOY_REQUIRE(in_own_run, kMisuse, "FSDP: parameter '",
                   groups_[group].param().leaves()[leaf].name, "' was used outside of unit ",
                   groups_[unit].name(), "'s forward, where it is only a shard. Call the unit ",
                   "through its own type (module->as<Block>()->forward(x) with Block = Unit<...>), "
                   "not through the plain module or a part of it");
  }
  std::size_t i = 0;
  for_each_part(groups_, run.unit, [&](std::size_t group) {
    for (const auto& leaf : groups_[group].param().leaves()) {
      const std::size_t uses = leaf.accumulator ? leaf.accumulator.use_count() : 0;
      CONVOY_REQUIRE(uses <= run.uses[i] + found[i], kMisuse, "FSDP: a tensor computed from '",
                     leaf.name, "' left unit ", groups_[run.unit].name(),
                     " without being returned by its forward (kept as a member?). Its backward "
                     "would find only a shard; return it, or keep it detached");
      ++i;
    }
  });
}

// The last of the modules that share a unit gives it up; so does the end of the model's forward.
void ForwardRuns::end_round(const ForwardRun& run) {
  Round& round = rounds_[run.unit];
  round.ran[run.module] = true;
  if (std::all_of(round.ran.begin(), round.ran.end(), [](bool ran) { return ran; })) {
    gatherer_.after_forward(run.unit, run.graph);
    return;
  }
  round.waits = true;
  round.graph = run.graph;
}

void ForwardRuns::give_up_waiting() {
  for (std::size_t unit = 0; unit < rounds_.size(); ++unit) {
    if (!std::exchange(rounds_[unit].waits, false)) continue;
    if (groups_[unit].state() == UnitState::kFull) {
      gatherer_.after_forward(unit, rounds_[unit].graph);
    }
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
    end_round(run);
  }
  if (run.graph && !run.in_backward && trains(run.unit)) gatherer_.order().end_unit(run.unit);
  if (open_.empty() && !run.in_backward) {
    give_up_waiting();
    gatherer_.end_model();
  }
  return std::move(part.nodes);
}

void ForwardRuns::abandon(const ForwardRun& run) noexcept {
  open_.resize(std::min(open_.size(), run.depth));
  const auto give_up = [this](std::size_t unit) {
    if (groups_[unit].state() != UnitState::kFull) return;
    try {
      gatherer_.reshard(unit);
    } catch (const std::exception&) {
      // A leaf was moved; the exception on its way says more.
      for_each_part(groups_, unit, [this](std::size_t part) { groups_[part].reset(); });
    }
  };
  if (!run.was_full) give_up(run.unit);
  if (!open_.empty()) return;
  for (std::size_t unit = 0; unit < rounds_.size(); ++unit) {
    if (std::exchange(rounds_[unit].waits, false)) give_up(unit);
  }
}

}  // namespace convoy::fsdp
