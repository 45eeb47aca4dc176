// One unit under FSDP: its leaves, its buffers, its gradients, and the state it is in.
#pragma once

#include "flat_param.h"
#include "tripwire.h"
#include "unit_gradients.h"
#include "unit_storage.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::fsdp {

enum class UnitState {
  kSharded,    ///< Leaves show their slices: outside of forward and backward, always.
  kGathering,  ///< A gather is in flight; leaves still show their slices.
  kFull,       ///< Leaves show all.
};

std::string_view to_string(UnitState state) noexcept;

/// Thread rule: the thread that runs forward or backward.
class ParamGroup {
 public:
  ParamGroup(const PlannedUnit& unit, int rank, int world);

  const std::string& name() const noexcept { return name_; }
  int parent() const noexcept { return parent_; }
  bool is_root() const noexcept { return is_root_; }
  /// The unit whose frozen part this is, or -1: see Note [Trainable and frozen parts].
  int part_of() const noexcept { return part_of_; }
  /// The frozen part of this unit, or -1.
  int frozen_part() const noexcept { return frozen_part_; }
  void set_frozen_part(std::size_t unit) noexcept { frozen_part_ = static_cast<int>(unit); }
  /// How many modules share this unit (see group_units).
  std::size_t modules() const noexcept { return modules_; }
  const std::vector<std::string>& paths() const noexcept { return paths_; }
  /// Units that must be full while this one runs: they hold parameters tied to names inside it.
  const std::vector<std::size_t>& borrows_from() const noexcept { return borrows_from_; }
  UnitState state() const noexcept { return state_; }
  FlatParam& param() noexcept { return param_; }
  const FlatParam& param() const noexcept { return param_; }
  UnitStorage& storage() noexcept { return *storage_; }
  const UnitStorage& storage() const noexcept { return *storage_; }
  UnitGradients& gradients() noexcept { return *gradients_; }
  const UnitGradients& gradients() const noexcept { return *gradients_; }
  Tripwire& tripwire() noexcept { return tripwire_; }
  const Tripwire& tripwire() const noexcept { return tripwire_; }
  bool trainable() const;

  /// Gives the unit its buffers. The leaves stay as they are.
  void attach(std::unique_ptr<UnitStorage> storage, const UnitPrecision& precision,
              std::shared_ptr<GradBufferPool> pool);
  const ForwardCasts& casts() const noexcept { return casts_; }
  /// Fills every rank's slices with the values of rank 0's leaves. Collective.
  void fill(bool is_first);
  /// Lets the leaves show their slices from now on. Does not fail.
  void take_over();

  /// True if the leaves show `values`, which they do only in kFull.
  bool shows(Values values) const noexcept;
  /// kSharded -> kGathering. `reuse` allows what a kept full buffer still holds.
  GatherInFlight begin_gather(bool reuse, Values values = Values::kCompute);
  /// kGathering -> kFull.
  void finish_gather(GatherInFlight flight);
  /// kGathering -> kSharded: waits and drops what came.
  void abandon_gather(GatherInFlight flight);
  /// kFull -> kSharded; keeps the full buffer's values if `keep`.
  void reshard(bool keep);
  /// Any state -> kSharded, without waiting for anything: after a failure.
  void reset() noexcept;

 private:
  void enter(UnitState to);

  std::string name_;
  int parent_;
  bool is_root_;
  int part_of_;
  int frozen_part_ = -1;
  std::size_t modules_;
  std::vector<std::string> paths_;
  std::vector<std::size_t> borrows_from_;
  UnitState state_ = UnitState::kSharded;
  FlatParam param_;
  ForwardCasts casts_;
  std::unique_ptr<UnitStorage> storage_;
  std::unique_ptr<UnitGradients> gradients_;
  Tripwire tripwire_;
};

/// Calls `visit(index)` for the unit and for its frozen part, if it has one.
template <typename Visit>
void for_each_part(const std::vector<ParamGroup>& groups, std::size_t unit, const Visit& visit) {
  visit(unit);
  if (const int part = groups[unit].frozen_part(); part >= 0) visit(static_cast<std::size_t>(part));
}

/// The unit that `group` is, or is the frozen part of.
inline std::size_t main_part(const std::vector<ParamGroup>& groups, std::size_t group) {
  const int of = groups[group].part_of();
  return of >= 0 ? static_cast<std::size_t>(of) : group;
}

/// Whether unit `outer` lies around unit `inner`.
inline bool is_around(const std::vector<ParamGroup>& groups, std::size_t outer, std::size_t inner) {
  for (int at = groups[inner].parent(); at >= 0;
       at = groups[static_cast<std::size_t>(at)].parent()) {
    if (static_cast<std::size_t>(at) == outer) return true;
  }
  return false;
}

}  // namespace convoy::fsdp
