// Checks the dtypes and marks the parameters below kept modules.
#include "precision_plan.h"

#include "convoy/base/check.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <unordered_set>

namespace convoy::fsdp {
namespace {

using KeptTensors = std::unordered_set<const c10::TensorImpl*>;

template <typename... Norms>
bool is_one_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Norms*>(&module) != nullptr) || ...);
}

bool is_low(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

std::string optional_name(const std::optional<at::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "none";
}

void check_dtypes(const MixedPrecision& options, at::ScalarType leaves) {
  if (const auto dtype = options.param_dtype) {
    CONVOY_REQUIRE(is_low(*dtype) || *dtype == leaves, kInvalidArgument,
                   "FSDP: mixed_precision.param_dtype is ", c10::toString(*dtype),
                   "; it takes BFloat16 or Half (or the parameters' own dtype, ",
                   c10::toString(leaves), ")");
    CONVOY_REQUIRE(leaves == at::kFloat || *dtype == leaves, kInvalidArgument,
                   "FSDP: mixed_precision.param_dtype is ", c10::toString(*dtype),
                   " and the model's parameters are ", c10::toString(leaves),
                   "; mixed precision starts from Float: call model->to(torch::kFloat) before "
                   "wrapping");
  }
  if (const auto dtype = options.reduce_dtype) {
    CONVOY_REQUIRE(is_low(*dtype) || *dtype == leaves, kInvalidArgument,
                   "FSDP: mixed_precision.reduce_dtype is ", c10::toString(*dtype),
                   "; it takes BFloat16, Half or the parameters' own dtype, ",
                   c10::toString(leaves));
  }
  if (const auto dtype = options.output_dtype) {
    CONVOY_REQUIRE(is_low(*dtype) || *dtype == at::kFloat || *dtype == at::kDouble,
                   kInvalidArgument, "FSDP: mixed_precision.output_dtype is ",
                   c10::toString(*dtype), "; it takes Float, Double, BFloat16 or Half");
  }
}

/// Every parameter of the model that some rule keeps.
KeptTensors find_kept(const torch::nn::Module& model, const KeepPolicy& policy) {
  KeptTensors kept;
  const auto modules = model.named_modules();
  for (const KeepPolicy::Rule& rule : policy.rules()) {
    bool keeps = false;
    for (const auto& item : modules) {
      if (!rule.matches(item.key(), *item.value())) continue;
      for (const at::Tensor& parameter : item.value()->parameters()) {
        kept.insert(parameter.unsafeGetTensorImpl());
        keeps = true;
      }
    }
    CONVOY_REQUIRE(keeps || rule.may_miss, kInvalidArgument,
                   "FSDP: mixed_precision.keep_fp32: ", rule.description,
                   " matches no module with parameters");
  }
  return kept;
}

/// Whether every parameter below the unit's modules is kept: those of inner units and of its frozen
/// part, and tied ones that lie in another unit, are used by its forward as well.
bool keeps_all(const PlannedUnit& unit, const KeptTensors& kept) {
  bool any = false;
  for (UnitBase* base : unit.modules) {
    const auto* module = dynamic_cast<const torch::nn::Module*>(base);
    for (const at::Tensor& parameter : module->parameters()) {
      if (!kept.contains(parameter.unsafeGetTensorImpl())) return false;
      any = true;
    }
  }
  return any;
}

}  // namespace

KeepPolicy keep_norms() {
  using namespace torch::nn;  // NOLINT: eight names of one family
  return KeepPolicy({.description = "keep_norms()",
                     .matches =
                         [](const std::string&, const torch::nn::Module& module) {
                           return is_one_of<LayerNormImpl, GroupNormImpl, BatchNorm1dImpl,
                                            BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
                                            InstanceNorm2dImpl, InstanceNorm3dImpl>(module);
                         },
                     .may_miss = true});
}

KeepPolicy keep_modules_named(std::string pattern) {
  CONVOY_REQUIRE(!pattern.empty(), kInvalidArgument,
                 "keep_modules_named: the pattern is empty; to keep the whole model in float32 "
                 "leave param_dtype unset");
  return KeepPolicy({.description = "keep_modules_named(\"" + pattern + "\")",
                     .matches = [pattern](const std::string& name, const torch::nn::Module&) {
                       return !name.empty() && name_matches(pattern, name);
                     }});
}

PrecisionPlan plan_precision(const torch::nn::Module& model, const UnitPlan& plan,
                             const MixedPrecision& options) {
  check_dtypes(options, plan.dtype);
  PrecisionPlan precision;
  precision.reduce_dtype = options.reduce_dtype.value_or(plan.dtype);
  const at::ScalarType compute = options.param_dtype.value_or(plan.dtype);
  const bool mixed = compute != plan.dtype;
  const KeptTensors kept = mixed ? find_kept(model, options.keep_fp32) : KeptTensors();
  for (const PlannedUnit& unit : plan.units) {
    UnitPrecision one{.compute_dtype = compute, .kept = {}, .casts = {}};
    for (const auto& parameter : unit.parameters) {
      one.kept.push_back(kept.contains(parameter.tensor.unsafeGetTensorImpl()));
    }
    if (!one.kept.empty() && std::find(one.kept.begin(), one.kept.end(), false) == one.kept.end()) {
      one.compute_dtype = plan.dtype;
      one.kept.assign(one.kept.size(), false);
    }
    if (options.param_dtype && options.cast_forward_inputs) {
      one.casts.inputs = keeps_all(unit, kept) ? plan.dtype : compute;
    }
    if (unit.parent < 0) one.casts.outputs = options.output_dtype;
    precision.units.push_back(std::move(one));
  }
  return precision;
}

std::vector<std::string> describe_for_comparison(const PrecisionPlan& precision,
                                                 const UnitPlan& plan) {
  std::vector<std::string> lines{
      concat("mixed_precision reduce_dtype=", c10::toString(precision.reduce_dtype))};
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPrecision& unit = precision.units[u];
    std::string line = concat("mixed_precision of unit ", plan.units[u].name, ": computes in ",
                              c10::toString(unit.compute_dtype), ", inputs cast to ",
                              optional_name(unit.casts.inputs), ", outputs cast to ",
                              optional_name(unit.casts.outputs));
    for (std::size_t i = 0; i < unit.kept.size(); ++i) {
      if (unit.kept[i]) line += concat(", keeps '", plan.units[u].parameters[i].name, "'");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace convoy::fsdp
