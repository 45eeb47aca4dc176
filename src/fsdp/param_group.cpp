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
    : name_(unit.name),
      parent_(unit.parent),
      is_root_(unit.is_root),
      part_of_(unit.part_of),
      modules_(unit.modules.size()),
      paths_(unit.paths),
      borrows_from_(unit.borrows_from),
      param_(unit, rank, world) {}

bool ParamGroup::trainable() const {
  const auto& leaves = param_.leaves();
  return std::any_of(leaves.begin(), leaves.end(),
                     [](const auto& leaf) { return leaf.tensor.requires_grad(); });
}

void ParamGroup::attach(std::unique_ptr<UnitStorage> storage, const UnitPrecision& precision,
                        std::shared_ptr<GradBufferPool> pool) {
  storage_ = std::move(storage);
  casts_ = precision.casts;
  param_.attach(storage_->master(), storage_->compute(), storage_->shard(), precision.kept);
  gradients_ = std::make_unique<UnitGradients>(param_, storage_->shard().scalar_type(),
                                               std::move(pool), name_);
}

void ParamGroup::fill(bool is_first) {
  const at::NoGradGuard no_grad;
  at::Tensor values;
  if (is_first) {
    values = at::zeros({param_.layout().total_numel()}, storage_->master().options());
    for (std::size_t i = 0; i < param_.leaves().size(); ++i) {
      const ParameterPlace& place = param_.layout().places[i];
      values.narrow(0, place.start, place.numel)
          .copy_(param_.leaves()[i].tensor.detach().reshape({-1}));
    }
  }
  storage_->scatter_from_first(values, name_);
}

void ParamGroup::take_over() { param_.show(FlatParam::Shows::kShard); }

void ParamGroup::enter(UnitState to) {
  CONVOY_CHECK(allowed(state_, to), "unit ", name_, ": ", to_string(state_), " to ", to_string(to));
  state_ = to;
}

bool ParamGroup::shows(Values values) const noexcept {
  if (state_ != UnitState::kFull) return false;
  const bool master = param_.shows() == FlatParam::Shows::kMaster;
  return !storage_->is_mixed() || master == (values == Values::kMaster);
}

GatherInFlight ParamGroup::begin_gather(bool reuse, Values values) {
  param_.require_untouched();
  const bool kept = reuse && values == Values::kCompute && storage_->filled();
  GatherInFlight flight = kept ? GatherInFlight{} : storage_->begin_gather(values, name_);
  enter(UnitState::kGathering);
  return flight;
}

void ParamGroup::finish_gather(GatherInFlight flight) {
  // Without mixed precision the two buffers are one, and the accumulators' state is kCompute.
  const bool master = flight.values == Values::kMaster && storage_->is_mixed();
  if (flight.work) storage_->finish_gather(std::move(flight));
  param_.show(master ? FlatParam::Shows::kMaster : FlatParam::Shows::kCompute);
  enter(UnitState::kFull);
}

void ParamGroup::abandon_gather(GatherInFlight flight) {
  if (flight.work) storage_->finish_gather(std::move(flight));
  storage_->drop();
  enter(UnitState::kSharded);
}

void ParamGroup::reshard(bool keep) {
  param_.require_untouched();
  param_.show(FlatParam::Shows::kShard);
  if (!keep) storage_->drop();
  enter(UnitState::kSharded);
}

void ParamGroup::reset() noexcept {
  // set_data of a view that was made with the leaf does not throw.
  param_.show(FlatParam::Shows::kShard);
  storage_->drop();
  tripwire_.disarm();
  state_ = UnitState::kSharded;
}

}  // namespace convoy::fsdp
