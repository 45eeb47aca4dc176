// Gathers, prefetches and drops the units of a model.
#include "gatherer.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <utility>

namespace convoy::fsdp {

Gatherer::Gatherer(std::vector<ParamGroup>& groups, Communicator& comm, GatherOptions options)
    : groups_(groups),
      comm_(comm),
      options_(options),
      window_(comm, options.shared),
      order_(groups.size()) {}

void Gatherer::settle() {
  if (!window_.enter() || !options_.shared) return;
  for (ParamGroup& group : groups_) group.tripwire().arm(group.param());
}

void Gatherer::leave(bool all_have_left) {
  window_.leave(all_have_left);
  for (ParamGroup& group : groups_) {
    group.tripwire().disarm();
    // Values kept from a forward are stale once owners write.
    if (group.state() == UnitState::kSharded) group.storage().drop();
  }
}

std::optional<std::string> Gatherer::written(std::size_t unit) const {
  return groups_[unit].tripwire().changed(groups_[unit].param());
}

void Gatherer::require_unwritten(std::size_t unit) const {
  const auto name = written(unit);
  if (!name) return;
  const Error error(
      ErrorKind::kMisuse,
      concat("FSDP: rank ", comm_.rank(), " wrote to parameter '", *name,
             "' while other ranks may read it. Parameters may change after a synchronised backward "
             "and before the next forward (step the optimizer there, before any evaluation), or "
             "inside fsdp.edit()"),
      comm_.rank());
  if (comm_.size() > 1) comm_.abort(error);
  throw error;
}

void Gatherer::gather(std::size_t unit, bool reuse) {
  ParamGroup& group = groups_[unit];
  if (group.state() == UnitState::kFull) return;
  settle();
  require_unwritten(unit);
  if (ahead_ && ahead_->unit == unit) {
    Ahead ahead = *std::exchange(ahead_, std::nullopt);
    finish(unit, std::move(ahead.flight));
    record(unit, "gather ahead", ahead.begin_ns);
    return;
  }
  abandon_ahead();
  const auto begin_ns = trace::now_ns();
  finish(unit, group.begin_gather(reuse));
  record(unit, "gather", begin_ns);
}

void Gatherer::record(std::size_t unit, const char* name, std::int64_t begin_ns) const {
  if (comm_.trace_sink() == nullptr) return;
  const ParamGroup& group = groups_[unit];
  const auto bytes =
      options_.shared ? 0 : static_cast<std::int64_t>(group.storage().full().nbytes());
  comm_.trace_sink()->record({.name = name,
                              .detail = group.name(),
                              .category = "comm",
                              .begin_ns = begin_ns,
                              .end_ns = trace::now_ns(),
                              .bytes = bytes});
}

void Gatherer::finish(std::size_t unit, GatherInFlight flight) {
  try {
    groups_[unit].finish_gather(std::move(flight));
  } catch (...) {
    groups_[unit].reset();  // a failed gather leaves the unit sharded
    throw;
  }
}

// With the unit ahead no more than two are full besides the root. Units inside units may need more
// at a time, and then none goes ahead.
bool Gatherer::has_room_ahead() const {
  return !options_.reshard_after_forward ||
         std::count_if(groups_.begin(), groups_.end(), [](const ParamGroup& group) {
           return !group.is_root() && group.state() == UnitState::kFull;
         }) <= 1;
}

void Gatherer::gather_ahead(std::optional<std::size_t> unit, bool reuse) {
  if (options_.shared || !unit || ahead_ || !has_room_ahead()) return;
  ParamGroup& group = groups_[*unit];
  if (group.state() != UnitState::kSharded) return;
  const auto begin_ns = trace::now_ns();
  ahead_ = Ahead{*unit, group.begin_gather(reuse), begin_ns};
}

void Gatherer::abandon_ahead() {
  if (!ahead_) return;
  Ahead ahead = *std::exchange(ahead_, std::nullopt);
  try {
    groups_[ahead.unit].abandon_gather(std::move(ahead.flight));
  } catch (...) {
    groups_[ahead.unit].reset();
    throw;
  }
}

void Gatherer::begin_model() {
  if (const auto failure = comm_.failure()) {
    throw Error(ErrorKind::kFailed, concat("FSDP: the communicator has failed: ", failure->what()),
                failure->rank());
  }
  abandon_ahead();
  order_.begin_model();
}

void Gatherer::for_forward(std::size_t unit, bool alone) {
  order_.begin_unit(unit);
  gather(unit, /*reuse=*/false);
  if (!alone) gather_ahead(order_.after(unit), /*reuse=*/false);
}

bool Gatherer::is_around(std::size_t outer, std::size_t inner) const {
  for (int at = groups_[inner].parent(); at >= 0;
       at = groups_[static_cast<std::size_t>(at)].parent()) {
    if (static_cast<std::size_t>(at) == outer) return true;
  }
  return false;
}

void Gatherer::for_backward(std::size_t unit, const std::function<bool(std::size_t)>& wanted) {
  if (groups_[unit].state() == UnitState::kFull) return;
  if (!options_.shared && options_.reshard_after_forward) {
    // Whatever is full and neither around this unit nor inside it has done its work; if one of its
    // nodes is still to come (in a unit with frozen parameters, say), that node gathers again.
    for (std::size_t other = 0; other < groups_.size(); ++other) {
      const ParamGroup& group = groups_[other];
      if (group.state() == UnitState::kFull && !group.is_root() && !is_around(other, unit) &&
          !is_around(unit, other)) {
        reshard(other);
      }
    }
  }
  gather(unit, /*reuse=*/true);
  const auto next = groups_[unit].is_root() ? order_.last() : order_.before(unit);
  if (next && *next != unit && wanted(*next)) gather_ahead(next, /*reuse=*/true);
}

void Gatherer::for_reading(std::size_t unit) { gather(unit, /*reuse=*/false); }

void Gatherer::after_forward(std::size_t unit, bool graph) {
  const bool keep = graph && (groups_[unit].is_root() || !options_.reshard_after_forward);
  groups_[unit].reshard(keep);
}

void Gatherer::reshard(std::size_t unit) { groups_[unit].reshard(/*keep=*/false); }

void Gatherer::reshard_all() {
  abandon_ahead();
  for (ParamGroup& group : groups_) {
    if (group.state() == UnitState::kFull) {
      group.reshard(/*keep=*/false);
    } else {
      group.storage().drop();
    }
  }
}

void Gatherer::reset() noexcept {
  ahead_.reset();
  for (ParamGroup& group : groups_) group.reset();
}

}  // namespace convoy::fsdp
