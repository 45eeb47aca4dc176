// Gathers, prefetches and drops the units of a model.
#include "gatherer.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <utility>

namespace convoy::fsdp {

Gatherer::Gatherer(std::vector<ParamGroup>& groups, Communicator& comm, GatherOptions options)
    : groups_(groups),
      comm_(comm),
      options_(std::move(options)),
      window_(comm, options_.shared),
      order_(static_cast<std::size_t>(
          std::count_if(groups.begin(), groups.end(),
                        [](const ParamGroup& group) { return group.part_of() < 0; }))) {}

// What peers read must be ready before this rank says that it has entered.
void Gatherer::publish() {
  if (window_.state() == WriteWindow::State::kClosed) return;
  for (ParamGroup& group : groups_) group.storage().publish();
}

void Gatherer::settle_for_good() noexcept {
  publish();  // copies between buffers that exist, which does not throw
  window_.enter_for_good();
}

void Gatherer::settle() {
  publish();
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

void Gatherer::require_unwritten(std::size_t unit) {
  const auto name = written(unit);
  if (!name) return;
  const Error error(
      ErrorKind::kMisuse,
      concat("FSDP: rank ", comm_.rank(), " wrote to parameter '", *name,
             "' while other ranks may read it. Parameters may change after a synchronised backward "
             "and before the next forward (step the optimizer there, before any evaluation), or "
             "inside fsdp.edit()"),
      comm_.rank());
  if (comm_.size() > 1) {
    comm_.abort(error);
  } else {
    leave(/*all_have_left=*/true);  // Nobody else reads: what was written counts from now on.
  }
  throw error;
}

void Gatherer::gather(std::size_t unit, bool reuse, Values values) {
  bool all_show = true;
  for_each_part(groups_, unit,
                [&](std::size_t part) { all_show = all_show && groups_[part].shows(values); });
  if (all_show) return;
  settle();
  for_each_part(groups_, unit, [this](std::size_t part) { require_unwritten(part); });
  if (groups_[unit].state() == UnitState::kFull) reshard(unit);
  if (ahead_ && ahead_->unit == unit && ahead_->flights.unit.values == values) {
    Ahead ahead = *std::exchange(ahead_, std::nullopt);
    finish(unit, std::move(ahead.flights));
    record(unit, "gather ahead", ahead.begin_ns);
    return;
  }
  abandon_ahead();
  const auto begin_ns = trace::now_ns();
  finish(unit, begin(unit, reuse, values));
  record(unit, "gather", begin_ns);
}

void Gatherer::record(std::size_t unit, const char* name, std::int64_t begin_ns) const {
  if (comm_.trace_sink() == nullptr) return;
  const ParamGroup& group = groups_[unit];
  const auto bytes =
      options_.shared ? 0 : static_cast<std::int64_t>(group.storage().compute().nbytes());
  comm_.trace_sink()->record({.name = name,
                              .detail = group.name(),
                              .category = "comm",
                              .begin_ns = begin_ns,
                              .end_ns = trace::now_ns(),
                              .bytes = bytes});
}

Gatherer::Flights Gatherer::begin(std::size_t unit, bool reuse, Values values) {
  Flights flights;
  try {
    flights.unit = groups_[unit].begin_gather(reuse, values);
    if (const int part = groups_[unit].frozen_part(); part >= 0) {
      flights.frozen_part = groups_[static_cast<std::size_t>(part)].begin_gather(reuse, values);
    }
  } catch (...) {
    reset(unit);
    throw;
  }
  return flights;
}

void Gatherer::finish(std::size_t unit, Flights flights) {
  try {
    groups_[unit].finish_gather(std::move(flights.unit));
    if (const int part = groups_[unit].frozen_part(); part >= 0) {
      groups_[static_cast<std::size_t>(part)].finish_gather(std::move(flights.frozen_part));
    }
  } catch (...) {
    reset(unit);  // a failed gather leaves the unit sharded
    throw;
  }
}

void Gatherer::reset(std::size_t unit) noexcept {
  for_each_part(groups_, unit, [this](std::size_t part) { groups_[part].reset(); });
}

bool Gatherer::keeps_all() const {
  return std::none_of(options_.reshards.begin(), options_.reshards.end(), [](bool r) { return r; });
}

// With the unit ahead no more than two are full besides the root. Units inside units may need more
// at a time, and then none goes ahead.
bool Gatherer::has_room_ahead() const {
  return keeps_all() ||
         std::count_if(groups_.begin(), groups_.end(), [](const ParamGroup& group) {
           return !group.is_root() && group.part_of() < 0 && group.state() == UnitState::kFull;
         }) <= 1;
}

void Gatherer::gather_ahead(std::optional<std::size_t> unit, bool reuse) {
  if (options_.shared || !unit || ahead_ || !has_room_ahead()) return;
  if (groups_[*unit].state() != UnitState::kSharded) return;
  const auto begin_ns = trace::now_ns();
  ahead_ = Ahead{*unit, begin(*unit, reuse, Values::kCompute), begin_ns};
}

void Gatherer::abandon_ahead() {
  if (!ahead_) return;
  Ahead ahead = *std::exchange(ahead_, std::nullopt);
  try {
    groups_[ahead.unit].abandon_gather(std::move(ahead.flights.unit));
    if (const int part = groups_[ahead.unit].frozen_part(); part >= 0) {
      groups_[static_cast<std::size_t>(part)].abandon_gather(std::move(ahead.flights.frozen_part));
    }
  } catch (...) {
    reset(ahead.unit);
    throw;
  }
}

void Gatherer::require_working() const {
  if (const auto failure = comm_.failure()) {
    throw Error(ErrorKind::kFailed, concat("FSDP: the communicator has failed: ", failure->what()),
                failure->rank());
  }
}

void Gatherer::begin_model() {
  require_working();
  abandon_ahead();
  order_.begin_model();
}

void Gatherer::for_forward(std::size_t unit, bool alone) {
  order_.begin_unit(unit);
  gather(unit, /*reuse=*/false);
  if (!alone) gather_ahead(order_.after(unit), /*reuse=*/false);
}

void Gatherer::for_backward(std::size_t unit, const UnitTest& wanted, const UnitTest& done) {
  if (groups_[unit].state() == UnitState::kFull) return;
  if (!options_.shared) {
    // Whatever is full and neither around this unit nor inside it has done its work; if one of its
    // nodes is still to come (in a unit with frozen parameters, say), that node gathers again. Kept
    // ones go here too, so that what has room ahead does not depend on what a rank has used.
    for (std::size_t other = 0; other < groups_.size(); ++other) {
      const ParamGroup& group = groups_[other];
      if (group.state() == UnitState::kFull && !group.is_root() && group.part_of() < 0 &&
          (options_.reshards[other] || done(other)) && !is_around(groups_, other, unit) &&
          !is_around(groups_, unit, other)) {
        reshard(other);
      }
    }
  }
  gather(unit, /*reuse=*/true);
  const auto next = groups_[unit].is_root() ? order_.last() : order_.before(unit);
  if (next && *next != unit && wanted(*next)) gather_ahead(next, /*reuse=*/true);
}

void Gatherer::for_reading(std::size_t unit) { gather(unit, /*reuse=*/false, Values::kMaster); }

void Gatherer::after_forward(std::size_t unit, bool graph) {
  const bool keep = graph && (groups_[unit].is_root() || !options_.reshards[unit]);
  for_each_part(groups_, unit, [&](std::size_t part) { groups_[part].reshard(keep); });
}

void Gatherer::reshard(std::size_t unit) {
  for_each_part(groups_, unit, [this](std::size_t part) { groups_[part].reshard(/*keep=*/false); });
}

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
