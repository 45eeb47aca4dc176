// The states of a unit and the changes between them.
#include "param_group.h"

#include "convoy/base/check.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace convoy::fsdp {
namespace {

bool allowed(UnitState from, UnitState to) {
  switch (from) {
    case UnitState::kSharded: return to == UnitState::kGathering;
    case UnitState::kGathering: return to == UnitState::kFull || to == UnitState::kSharded;
    case UnitState::kFull: return to == UnitState::kSharded;
  }
  return false;
}

}  // namespace

std::string_view to_string(UnitState state) noexcept {
  switch (state) {
    case UnitState::kSharded: return "sharded";
    case UnitState::kGathering: return "gathering";
    case UnitState::kFull: return "full";
  }
  return "unknown";
}

ParamGroup::ParamGroup(const PlannedUnit& unit, int rank, int world)
    : name_(unit.name), parent_(unit.parent), is_root_(unit.is_root), param_(unit, rank, world) {}

bool ParamGroup::trainable() const {
  const auto& leaves = param_.leaves();
  return std::any_of(leaves.begin(), leaves.end(),
                     [](const auto& leaf) { return leaf.tensor.requires_grad(); });
}

void ParamGroup::attach(std::unique_ptr<UnitStorage> storage,
                        std::shared_ptr<GradBufferPool> pool) {
  storage_ = std::move(storage);
  param_.attach(storage_->full(), storage_->shard());
  gradients_ = std::make_unique<UnitGradients>(param_, std::move(pool), name_);
}

void ParamGroup::fill(bool is_first) {
  const at::NoGradGuard no_grad;
  at::Tensor values;
  if (is_first) {
    values = at::zeros({param_.layout().total_numel()}, storage_->full().options());
    for (std::size_t i = 0; i < param_.leaves().size(); ++i) {
      const ParameterPlace& place = param_.layout().places[i];
      values.narrow(0, place.start, place.numel)
          .copy_(param_.leaves()[i].tensor.detach().reshape({-1}));
    }
  }
  storage_->scatter_from_first(values, name_);
}

void ParamGroup::take_over() { param_.show_shard(); }

void ParamGroup::enter(UnitState to) {
  CONVOY_CHECK(allowed(state_, to), "unit ", name_, ": ", to_string(state_), " to ", to_string(to));
  state_ = to;
}

GatherInFlight ParamGroup::begin_gather(bool reuse) {
  param_.require_untouched();
  const bool kept = reuse && storage_->filled();
  GatherInFlight flight = kept ? GatherInFlight{} : storage_->begin_gather(name_);
  enter(UnitState::kGathering);
  return flight;
}

void ParamGroup::finish_gather(GatherInFlight flight) {
  if (flight.work) storage_->finish_gather(std::move(flight));
  param_.show_full();
  enter(UnitState::kFull);
}

void ParamGroup::abandon_gather(GatherInFlight flight) {
  if (flight.work) storage_->finish_gather(std::move(flight));
  storage_->drop();
  enter(UnitState::kSharded);
}

void ParamGroup::reshard(bool keep) {
  param_.require_untouched();
  param_.show_shard();
  if (!keep) storage_->drop();
  enter(UnitState::kSharded);
}

void ParamGroup::reset() noexcept {
  // set_data of a view that was made with the leaf does not throw.
  param_.show_shard();
  storage_->drop();
  tripwire_.disarm();
  state_ = UnitState::kSharded;
}

}  // namespace convoy::fsdp
