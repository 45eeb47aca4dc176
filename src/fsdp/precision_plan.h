// Decides in which dtype every unit and parameter computes: options and modules in, a plan out.
#pragma once

#include "convoy/fsdp/mixed_precision.h"
#include "convoy/fsdp/unit_behaviour.h"
#include "unit_plan.h"

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace convoy::fsdp {

struct UnitPrecision {
  at::ScalarType compute_dtype = at::kFloat;  ///< Of the parameters that are not kept.
  /// By parameter: computes in its own dtype. All false where compute_dtype is that dtype.
  std::vector<bool> kept;
  ForwardCasts casts;
};

struct PrecisionPlan {
  at::ScalarType reduce_dtype = at::kFloat;
  std::vector<UnitPrecision> units;  ///< As in the UnitPlan.
};

/// Errors, all kInvalidArgument: a dtype that makes no sense where it stands; a rule of keep_fp32
/// that keeps no parameter.
PrecisionPlan plan_precision(const torch::nn::Module& model, const UnitPlan& plan,
                             const MixedPrecision& options);

/// Lines for the comparison of the ranks, each naming what it is about.
std::vector<std::string> describe_for_comparison(const PrecisionPlan& precision,
                                                 const UnitPlan& plan);

}  // namespace convoy::fsdp
