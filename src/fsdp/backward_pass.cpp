// Counts what arrives and launches reductions in order.
#include "backward_pass.h"

#include "convoy/base/check.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace convoy::fsdp {

using torch::autograd::get_current_graph_task_exec_info;
using torch::autograd::get_current_graph_task_id;
using torch::autograd::get_current_graph_task_nodes_in_graph;

BackwardPass::BackwardPass(BackwardSetup setup, std::uint64_t number, bool synchronised)
    : setup_(setup),
      number_(number),
      task_(get_current_graph_task_id()),
      kind_(synchronised ? Kind::kSynchronised : Kind::kLocal),
      begin_ns_(trace::now_ns()),
      last_gradient_ns_(begin_ns_),
      progress_(setup.groups.size()) {
  look_at_graph();
  if (kind_ == Kind::kInputsOnly) return;
  for (ParamGroup& group : setup_.groups) group.gradients().begin();
  const auto& ended = setup_.gatherer.order().ended();
  if (!setup_.gatherer.options().shared) route_.assign(ended.rbegin(), ended.rend());
}

void BackwardPass::look_at_graph() {
  const auto* nodes = get_current_graph_task_nodes_in_graph();
  const auto* wanted = get_current_graph_task_exec_info();
  const bool partial = wanted != nullptr && !wanted->empty();
  bool any_expected = false;
  for (std::size_t u = 0; u < progress_.size(); ++u) {
    Progress& progress = progress_[u];
    const auto& leaves = setup_.groups[u].param().leaves();
    progress.arrived_at.resize(leaves.size());
    for (const auto& leaf : leaves) {
      progress.trainable += leaf.tensor.requires_grad() ? 1 : 0;
      Node* accumulator = leaf.accumulator.get();
      if (accumulator == nullptr) continue;
      if (!partial) {
        progress.expected += nodes->count(accumulator);
        continue;
      }
      const auto found = wanted->find(accumulator);
      if (found == wanted->end()) continue;
      CONVOY_REQUIRE(found->second.captures_ == nullptr, kMisuse,
                     "FSDP: autograd::grad for parameter '", leaf.name,
                     "' would give a full gradient that nobody reduces; use backward()");
      progress.expected += found->second.needed_ ? 1 : 0;
    }
    any_expected = any_expected || progress.expected > 0;
  }
  if (partial && !any_expected) kind_ = Kind::kInputsOnly;
  if (!partial) require_uses_in_units();
  reenters_ = std::any_of(nodes->begin(), nodes->end(),
                          [](const Node* node) { return may_reenter(*node); });
}

// A leaf used while it shows its shard, in a regulariser for example, brings a gradient of the
// shard. Its shape is mostly wrong, which autograd refuses; that of a scalar, or of a parameter of
// one row, fits, and would be averaged as if it were of the whole.
void BackwardPass::require_uses_in_units() const {
  for (const Node* node : *get_current_graph_task_nodes_in_graph()) {
    for (const auto& edge : node->next_edges()) {
      const auto owner = setup_.accumulators.find(edge.function.get());
      if (owner == setup_.accumulators.end()) continue;
      const ParamGroup& group = setup_.groups[owner->second.unit];
      const ParamGroup& unit = setup_.groups[main_part(setup_.groups, owner->second.unit)];
      CONVOY_REQUIRE(is_hooked_for(*node, &unit), kMisuse, "FSDP: parameter '",
                     group.param().leaves()[owner->second.leaf].name, "' was used outside of unit ",
                     unit.name(), "'s forward (in a regulariser?), where it is only a shard. Use ",
                     "it inside the forward of that unit, or add what it contributes to the "
                     "gradients after backward");
    }
  }
}

// Called by every hook. A hook in some graph task says that the node before it in that task is
// over.
void BackwardPass::note_task() {
  const int task = get_current_graph_task_id();
  if (task != task_) reenters_ = true;
  if (!reenters_) return;
  for (std::size_t u = 0; u < progress_.size(); ++u) {
    if (progress_[u].running_in != task) continue;
    progress_[u].running_in = kNoTask;
    // Its last gradients may have come from a backward inside that node.
    for_each_part(setup_.groups, u, [this](std::size_t part) {
      if (progress_[part].arrived > 0) note_complete(part);
    });
  }
}

void BackwardPass::trace_unit(std::size_t unit) const {
  trace::Sink* sink = setup_.comm.trace_sink();
  if (sink == nullptr) return;
  sink->record({.name = "unit backward",
                .detail = setup_.groups[unit].name(),
                .category = "compute",
                .begin_ns = progress_[unit].begin_ns,
                .end_ns = last_gradient_ns_,  // Of this unit: so that it ends within the whole.
                .bytes = 0});
}

// No node of the unit seen so far is still to come or may be running.
bool BackwardPass::is_past(std::size_t unit) const {
  const Progress& progress = progress_[main_part(setup_.groups, unit)];
  return progress.pending_nodes <= 0 && progress.running_in == kNoTask;
}

bool BackwardPass::complete(std::size_t unit) const {
  const Progress& progress = progress_[unit];
  // Where user code may start a backward of its own, what will arrive is not known beforehand.
  if (reenters_) {
    return progress.arrived == progress.trainable && is_past(unit);
  }
  return progress.expected > 0 ? progress.arrived >= progress.expected : progress.passed;
}

// All gradients that will come have come, to a parameter thawed since wrapping as well.
bool BackwardPass::may_give_up(std::size_t main) const {
  bool all = true;
  for_each_part(setup_.groups, main, [&](std::size_t part) {
    all = all && (progress_[part].trainable == 0 || complete(part));
  });
  return all;
}

bool BackwardPass::may_launch(std::size_t unit) const {
  if (progress_[unit].trainable == 0 || complete(unit)) return true;
  return !reenters_ && progress_[unit].expected == 0 && !is_ahead(unit);
}

bool BackwardPass::is_ahead(std::size_t unit) const {
  return std::find(route_.begin(), route_.end(), unit) != route_.end();
}

void BackwardPass::follow_route(std::size_t unit) {
  if (!is_ahead(unit)) return;
  while (route_.front() != unit) come_to(route_.front());
  route_.pop_front();
}

// To a unit on the route that has no node of its own on this rank, as far as can be seen.
void BackwardPass::come_to(std::size_t unit) {
  route_.pop_front();
  if (setup_.groups[unit].state() != UnitState::kFull) gather(unit);
  note_no_gradients(unit);
}

// Where no gradient will come for a unit, it is complete as soon as backward has come to it. Not
// given up: its nodes, if there are any, are still to run.
void BackwardPass::note_no_gradients(std::size_t unit) {
  if (setup_.gatherer.options().shared || reenters_) return;
  for_each_part(setup_.groups, unit, [this](std::size_t part) {
    Progress& progress = progress_[part];
    if (progress.trainable == 0 || progress.expected > 0 || progress.passed) return;
    progress.passed = true;
    list(part);
    if (kind_ == Kind::kSynchronised) launch_ready();
  });
}

void BackwardPass::gather(std::size_t unit) {
  const auto wanted = [this](std::size_t other) {
    const Progress& one = progress_[other];
    return one.delivery == Delivery::kOpen && (one.expected == 0 || one.arrived < one.expected);
  };
  const auto done = [this](std::size_t other) {
    return progress_[other].trainable > 0 && may_give_up(other);
  };
  setup_.gatherer.for_backward(unit, wanted, done);
}

void BackwardPass::on_node(UnitRun& run, const Node& node) {
  note_task();
  Progress& progress = progress_[run.unit];
  if (may_reenter(node)) {
    reenters_ = true;
    progress.running_in = get_current_graph_task_id();
  }
  if (run.backward != number_) {
    run.backward = number_;
    const auto* graph = get_current_graph_task_nodes_in_graph();
    for (const Node* one : run.nodes) {
      // The root of a graph task is not listed as a part of its graph.
      if (one == &node || graph->count(const_cast<Node*>(one)) > 0) ++progress.pending_nodes;
    }
  }
  --progress.pending_nodes;
  if (!progress.seen) progress.begin_ns = trace::now_ns();
  progress.seen = true;
  if (kind_ == Kind::kSynchronised && reenters_) launch_ready();
  if (setup_.groups[run.unit].state() != UnitState::kFull) {
    follow_route(run.unit);
    gather(run.unit);
  } else if (!route_.empty() && route_.front() == run.unit) {
    route_.pop_front();  // An earlier run of a unit that was kept since a later one.
  }
  note_no_gradients(run.unit);
}

void BackwardPass::on_gradient(std::size_t unit, std::size_t leaf, const at::Tensor& gradient) {
  Progress& progress = progress_[unit];
  ParamGroup& group = setup_.groups[unit];
  const std::size_t main = main_part(setup_.groups, unit);
  CONVOY_REQUIRE(progress_[main].seen, kMisuse, "FSDP: parameter '",
                 group.param().leaves()[leaf].name, "' got a gradient although unit ", group.name(),
                 " was not gathered: it was used ",
                 "outside of its unit's forward, where it is only a shard");
  note_task();
  last_gradient_ns_ = trace::now_ns();
  setup_.comm.poll();
  if (gradient.defined()) {
    const at::NoGradGuard no_grad;
    if (kind_ == Kind::kLocal) {
      group.gradients().add_local(leaf, gradient);
    } else if (progress.delivery == Delivery::kOpen) {
      ensure_buffer(unit);
      group.gradients().add(leaf, gradient);
    } else {
      group.gradients().add_late(leaf, gradient);
    }
  }
  if (!progress.arrived_at[leaf]) {
    progress.arrived_at[leaf] = true;
    ++progress.arrived;
  }
  note_complete(unit);
}

bool BackwardPass::list(std::size_t unit) {
  if (std::exchange(progress_[unit].listed, true)) return false;
  completed_.push_back(unit);
  return true;
}

// Called when a gradient has come, and when a node that may have brought some is over.
void BackwardPass::note_complete(std::size_t unit) {
  if (!complete(unit)) return;
  if (list(unit)) trace_unit(unit);
  if (kind_ == Kind::kSynchronised) launch_ready();
  const std::size_t main = main_part(setup_.groups, unit);
  if (is_past(main) && may_give_up(main) && setup_.groups[main].state() == UnitState::kFull) {
    setup_.gatherer.reshard(main);
  }
}

void BackwardPass::ensure_buffer(std::size_t unit) {
  UnitGradients& gradients = setup_.groups[unit].gradients();
  if (gradients.has_buffer()) return;
  while (!flights_.empty() && flights_.front().reduce.work->is_completed()) finish_oldest();
  while (!gradients.take_buffer(/*plain=*/false)) {
    if (flights_.empty()) {
      gradients.take_buffer(/*plain=*/true);
      return;
    }
    finish_oldest();
  }
}

void BackwardPass::launch_ready() {
  while (next_ < setup_.order.size() && may_launch(setup_.order[next_])) {
    launch(setup_.order[next_++]);
  }
}

void BackwardPass::launch(std::size_t unit) {
  if (progress_[unit].trainable == 0) return;
  ensure_buffer(unit);
  const at::NoGradGuard no_grad;
  const std::string& name = setup_.groups[unit].name();
  std::string tag =
      setup_.forwards == 1 ? name : concat(name, " after ", setup_.forwards, " forwards");
  flights_.push_back(
      {unit, setup_.groups[unit].gradients().begin_reduce(setup_.comm, std::move(tag))});
  progress_[unit].delivery = Delivery::kReducing;
}

void BackwardPass::finish_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const at::NoGradGuard no_grad;
  setup_.groups[flight.unit].gradients().finish_reduce(std::move(flight.reduce));
  progress_[flight.unit].delivery = Delivery::kReduced;
}

bool BackwardPass::owes_peers() const noexcept {
  const bool gathers = !setup_.gatherer.options().shared;
  return setup_.comm.size() > 1 && !all_have_failed_ && (kind_ == Kind::kSynchronised || gathers);
}

}  // namespace convoy::fsdp
