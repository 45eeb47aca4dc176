// What a wrapped unit does around its module's forward, seen from the unit: a small interface.
#pragma once

#include "convoy/recompute/segment.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace convoy::fsdp {

/// One run of a unit's forward. Destroyed without finish() it undoes the run, which is what an
/// exception in the module's forward does.
class ForwardScope {
 public:
  virtual ~ForwardScope() = default;
  /// Ends the run: hooks the graph behind `outputs` and reshards. Throws kMisuse for tensors that
  /// left the unit by another way.
  virtual void finish(const std::vector<at::Tensor>& outputs) = 0;
};

/// To which dtypes floating-point tensors in arguments and results of a forward are cast.
struct ForwardCasts {
  std::optional<at::ScalarType> inputs, outputs;
};

/// The wrapper's side of one unit. Held by the unit; one thread at a time, the one that trains.
class UnitBehaviour {
 public:
  virtual ~UnitBehaviour() = default;
  /// What the unit's forward casts, before and after its run.
  virtual ForwardCasts casts() const noexcept = 0;
  /// Makes the unit's parameters full and returns the run that is going on. `trains` says that the
  /// module is in training mode.
  virtual std::unique_ptr<ForwardScope> enter_forward(bool trains) = 0;
  /// Throws kMisuse saying why `operation` (for example "to(dtype)") cannot be done on a sharded
  /// module and what to do instead.
  [[noreturn]] virtual void refuse(const std::string& operation) const = 0;
  /// The whole shape of a parameter of this unit, whichever state it is in.
  virtual std::vector<std::int64_t> full_sizes(const at::Tensor& parameter) const = 0;
};

/// The second base of every unit, by which wrappers find units among modules. Its members have
/// names that will not hide or confuse a member of the user's module.
class UnitBase {
 public:
  UnitBase() = default;
  UnitBase(const UnitBase&) = delete;
  UnitBase& operator=(const UnitBase&) = delete;
  virtual ~UnitBase() = default;

  /// Null until the unit is wrapped; then shared with the wrapper for the life of the module.
  std::shared_ptr<UnitBehaviour>& convoy_unit_behaviour() noexcept {
    return convoy_unit_behaviour_;
  }
  const std::shared_ptr<UnitBehaviour>& convoy_unit_behaviour() const noexcept {
    return convoy_unit_behaviour_;
  }

  /// How forward is checkpointed; empty: it is not. Set by checkpoint_units.
  std::optional<CheckpointOptions>& convoy_checkpoint() noexcept { return convoy_checkpoint_; }
  const std::optional<CheckpointOptions>& convoy_checkpoint() const noexcept {
    return convoy_checkpoint_;
  }

 private:
  std::shared_ptr<UnitBehaviour> convoy_unit_behaviour_;
  std::optional<CheckpointOptions> convoy_checkpoint_;
};

}  // namespace convoy::fsdp
