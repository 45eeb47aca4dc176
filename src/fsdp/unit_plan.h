// Divides the parameters of a model among its units: names and tensors in, a plan out.
#pragma once

#include "convoy/fsdp/parameter_filter.h"
#include "convoy/fsdp/policy.h"
#include "convoy/fsdp/reshard_after_forward.h"
#include "convoy/fsdp/unit_behaviour.h"
#include "parameter_checks.h"
#include "unit_choice.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <limits>
#include <string>
#include <vector>

namespace convoy::fsdp {

using PlannedParameter = NamedParameter;

/// Note [Trainable and frozen parts]
/// A unit with parameters of both kinds (adapters in a frozen block) is planned as two: one with
/// the trainable ones, and its frozen part, which is gathered and given up together with it. So
/// gradient buffers and reductions are of the size of what trains, and every rank owns an equal
/// share of it. Which part a parameter is in is decided at wrapping; one that is thawed or frozen
/// later stays where it is, and its gradient is right all the same.
struct PlannedUnit {
  std::string name;  ///< Path in the model; "(root)"; "blocks.0..3" for a group of blocks.
  /// The modules that share the unit, more than one in a group; none for a frozen part.
  std::vector<UnitBase*> modules;
  std::vector<std::string> paths;  ///< Theirs.
  int parent = -1;                 ///< Index of the unit around it, -1 if none.
  bool is_root = false;
  int part_of = -1;  ///< Index of the unit whose frozen part this is, or -1.
  /// Units around this one that hold a parameter of its own modules, tied to one elsewhere.
  std::vector<std::size_t> borrows_from;
  std::vector<PlannedParameter> parameters;  ///< In registration order, each tensor once.

  /// By which options ask for it: the path of its first module.
  const std::string& key() const { return paths.empty() || is_root ? name : paths.front(); }
};

/// One name of one parameter.
struct PlannedName {
  static constexpr std::size_t kIgnored = std::numeric_limits<std::size_t>::max();

  std::string name;
  std::size_t unit = 0;       ///< Or kIgnored.
  std::size_t parameter = 0;  ///< In the unit, or among the ignored ones.
  bool ignored() const noexcept { return unit == kIgnored; }
};

struct UnitPlan {
  /// In registration order, outer before inner; then the frozen parts.
  std::vector<PlannedUnit> units;
  std::vector<PlannedName> names;  ///< Registration order of the model; a tied tensor has several.
  std::vector<PlannedParameter> ignored;  ///< Each tensor once.
  UnitChoice choice;                      ///< What the policy said.
  at::ScalarType dtype = at::kFloat;
};

/// What a plan may find without it being an error: for descriptions, not for wrapping.
struct PlanAllowance {
  bool misses = false;  ///< Rules of the policy that match nothing.
  bool meta = false;    ///< Parameters without memory.
  bool wrapped = false;
};

/// Chooses the units by `policy` and gives every parameter to the innermost one around it; one that
/// is tied across units goes to the innermost unit around all its names.
/// Errors, all kInvalidArgument with names: a parameter outside every unit; a rule that matches
/// nothing, or chooses a module that is no unit; a unit that is wrapped already; a parameter tied
/// across units with no unit around both, or overlapping another; one that is not a dense CPU leaf
/// of float32 or float64 (the same for all) or has a gradient.
UnitPlan plan_units(const torch::nn::Module& model, const WrapPolicy& policy,
                    const ParameterFilter& ignored = {}, PlanAllowance allowance = {});

/// Error: kInvalidArgument if `reshards` is to keep units by a pattern that matches none of `plan`.
void require_kept_units(const UnitPlan& plan, const ReshardAfterForward& reshards);

}  // namespace convoy::fsdp
