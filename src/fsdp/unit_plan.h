// Divides the parameters of a model among its units: names and tensors in, a plan out.
#pragma once

#include "convoy/fsdp/policy.h"
#include "convoy/fsdp/unit_behaviour.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace convoy::fsdp {

struct PlannedParameter {
  std::string name;  ///< Original name in the model, the first one if it is tied.
  at::Tensor tensor;
};

struct PlannedUnit {
  std::string name;  ///< Path in the model; "(root)" for the root.
  UnitBase* unit = nullptr;
  int parent = -1;  ///< Index of the unit around it, -1 if none.
  bool is_root = false;
  std::vector<PlannedParameter> parameters;  ///< In registration order, each tensor once.
};

/// One name of one parameter.
struct PlannedName {
  std::string name;
  std::size_t unit = 0;
  std::size_t parameter = 0;  ///< In the unit.
};

struct UnitPlan {
  std::vector<PlannedUnit> units;  ///< In registration order, outer before inner.
  std::vector<PlannedName> names;  ///< Registration order of the model; a tied tensor has several.
  at::ScalarType dtype = at::kFloat;
};

/// Chooses the units by `policy` and gives every parameter to the innermost one around it.
/// Errors, all kInvalidArgument with names: a parameter outside every unit; a rule of the policy
/// that matches nothing, or a module that is no unit; a unit that is wrapped already; a parameter
/// tied across units or overlapping another; one that is not a dense CPU leaf of float32 or float64
/// (the same for all) or has a gradient.
UnitPlan plan_units(torch::nn::Module& model, const WrapPolicy& policy);

}  // namespace convoy::fsdp
