// What is done to a sharded model between its steps: reading and writing whole parameters,
// gathering by hand, edits.
#include "convoy/base/check.h"
#include "convoy/fsdp/full_params.h"
#include "convoy/fsdp/policy.h"
#include "sharded_model.h"

#include <algorithm>
#include <utility>

namespace convoy::fsdp {

void ShardedModel::require_idle(const char* operation) const {
  CONVOY_REQUIRE(!runs_->any() && backward_thread_.load() == std::thread::id(), kMisuse,
                 "FSDP: ", operation, " inside a forward or backward of the model");
  require_no_scope(operation);
}

void ShardedModel::begin_between(const char* operation) {
  require_idle(operation);
  gatherer_->require_working();
  gatherer_->end_model();
}

void ShardedModel::require_no_scope(const std::string& operation) const {
  CONVOY_REQUIRE(!summoned_, kMisuse, "FSDP: ", operation,
                 " inside a summon_full_params scope of the model; end the scope first");
}

void ShardedModel::require_sharded(const char* operation) const {
  for (const ParamGroup& group : groups_) {
    CONVOY_REQUIRE(group.state() == UnitState::kSharded, kMisuse, "FSDP: ", operation,
                   " while unit ", group.name(), " is unsharded by hand; call reshard() first");
  }
}

std::vector<std::size_t> ShardedModel::units_named(const std::string& pattern, bool recurse) const {
  std::vector<std::size_t> units;
  for (std::size_t u = 0; u < groups_.size(); ++u) {
    const ParamGroup& group = groups_[u];
    if (group.part_of() >= 0) continue;
    const auto matches = [&](const std::string& path) {
      return name_matches(pattern, path.empty() ? kRootName : path);
    };
    const bool named = std::any_of(group.paths().begin(), group.paths().end(), matches);
    const bool inside =
        recurse && std::find(units.begin(), units.end(),
                             static_cast<std::size_t>(group.parent())) != units.end();
    if (named || inside) units.push_back(u);
  }
  if (units.empty()) {
    std::vector<std::string> names;
    for (const ParamGroup& group : groups_) {
      if (group.part_of() < 0 && !group.is_root()) names.push_back(group.name());
    }
    throw Error(ErrorKind::kInvalidArgument,
                concat("FSDP: no unit is named '", pattern, "'", known_units(pattern, names)));
  }
  return units;
}

void ShardedModel::announce(const char* call) { comm_->barrier({.tag = call})->wait(); }

void ShardedModel::with_full(std::size_t group, const std::function<void()>& read) {
  begin_between("reading full parameters");
  const std::size_t unit = main_part(groups_, group);
  const bool was_full = groups_[unit].state() == UnitState::kFull;
  const auto end = [&] {
    gatherer_->reshard(unit);
    if (was_full) gatherer_->for_use(unit);
  };
  gatherer_->for_reading(unit);
  try {
    read();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void ShardedModel::replace_values(std::size_t unit, const at::Tensor& values) {
  groups_[unit].storage().scatter_from_first(values, groups_[unit].name());
}

void ShardedModel::settle() {
  begin_between("settle()");
  gatherer_->settle();
}

void ShardedModel::begin_edit() {
  begin_between("edit()");
  require_sharded("edit()");
  gatherer_->leave(/*all_have_left=*/false);
}

void ShardedModel::unshard(const std::string& pattern) {
  begin_between("unshard()");
  const auto units = units_named(pattern, /*recurse=*/false);
  announce("FSDP: unshard()");
  for (const std::size_t unit : units) gatherer_->for_use(unit);
}

void ShardedModel::reshard(const std::string& pattern) {
  begin_between("reshard()");
  for (const std::size_t unit : units_named(pattern, /*recurse=*/false)) {
    if (groups_[unit].state() == UnitState::kFull) gatherer_->reshard(unit);
  }
}

void ShardedModel::set_reshards(const std::string& pattern, bool reshards) {
  begin_between("set_reshard_after_forward()");
  for (const std::size_t unit : units_named(pattern, /*recurse=*/false)) {
    gatherer_->set_reshards(unit, reshards);
  }
}

void ShardedModel::summon(const SummonOptions& options) {
  begin_between("summon_full_params");
  require_sharded("summon_full_params");
  const auto units = units_named(options.units, options.recurse);
  announce("FSDP: summon_full_params");
  const bool shows = !options.rank0_only || comm_->rank() == 0;
  summoned_ = std::make_unique<FullValues>(groups_, *comm_, units, shows);
  summon_ = Summoning{options.writeback, options.rank0_only};
}

void ShardedModel::end_summon() {
  // Whatever happens, the leaves show their shards afterwards.
  const auto values = std::exchange(summoned_, nullptr);
  values->hide();
  if (!summon_.writeback) return;
  gatherer_->leave(/*all_have_left=*/false);
  if (summon_.rank0_only) {
    values->write_first();
  } else {
    values->write_own();
  }
}

void ShardedModel::abandon_summon() noexcept {
  std::exchange(summoned_, nullptr)->hide();
  if (!summon_.writeback || comm_->size() == 1) return;
  comm_->abort(Error(ErrorKind::kFailed,
                     concat("FSDP: a summon_full_params scope on rank ", comm_->rank(),
                            " was left by an exception; see that rank's own message"),
                     comm_->rank()));
}

void ShardedModel::close() noexcept { gatherer_->settle_for_good(); }

}  // namespace convoy::fsdp
