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
  void attach(std::unique_ptr<UnitStorage> storage, std::shared_ptr<GradBufferPool> pool);
  /// Fills every rank's slices with the values of rank 0's leaves. Collective.
  void fill(bool is_first);
  /// Lets the leaves show their slices from now on. Does not fail.
  void take_over();

  /// kSharded -> kGathering. `reuse` allows what a kept full buffer still holds.
  GatherInFlight begin_gather(bool reuse);
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
  UnitState state_ = UnitState::kSharded;
  FlatParam param_;
  std::unique_ptr<UnitStorage> storage_;
  std::unique_ptr<UnitGradients> gradients_;
  Tripwire tripwire_;
};

}  // namespace convoy::fsdp
