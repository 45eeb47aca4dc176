// Mixed precision of FSDP: in which dtypes units compute, gradients are reduced and outputs return.
#pragma once

#include "convoy/fsdp/policy.h"

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// A list of rules for modules whose parameters are kept in float32 while the rest of their unit
/// computes in a lower precision; a module that any rule matches is kept with all modules below it.
/// A rule that keeps no parameter is an error at wrapping, unless may_miss.
class KeepPolicy {
 public:
  struct Rule {
    std::string description;
    std::function<bool(const std::string& name, const torch::nn::Module& module)> matches;
    bool may_miss = false;
  };

  KeepPolicy() = default;
  explicit KeepPolicy(Rule rule) { rules_.push_back(std::move(rule)); }

  const std::vector<Rule>& rules() const noexcept { return rules_; }
  void add(const KeepPolicy& other) {
    rules_.insert(rules_.end(), other.rules_.begin(), other.rules_.end());
  }

 private:
  std::vector<Rule> rules_;
};

/// Modules that either side keeps.
inline KeepPolicy operator|(KeepPolicy left, const KeepPolicy& right) {
  left.add(right);
  return left;
}

/// The norms of torch::nn that compute in float32 inside whatever the dtype of their input is, and
/// return that dtype: LayerNorm, GroupNorm, BatchNorm1d to 3d, InstanceNorm1d to 3d (the default).
/// Keeps none without complaint. A norm of your own that does the same: keep_modules_of<MyNorm>().
KeepPolicy keep_norms();
/// Nothing: every parameter computes in param_dtype.
inline KeepPolicy keep_nothing() { return {}; }
/// Modules whose name in the model matches a pattern (see wrap_units_named): "head", "blocks.0.*".
KeepPolicy keep_modules_named(std::string pattern);
/// Modules that are an M; a holder works as well.
template <typename M>
KeepPolicy keep_modules_of() {
  using Module = typename detail::ModuleOf<M>::type;
  return KeepPolicy(
      {.description = "keep_modules_of<" + c10::demangle(typeid(Module).name()) + ">()",
       .matches = [](const std::string&, const torch::nn::Module& module) {
         return dynamic_cast<const Module*>(&module) != nullptr;
       }});
}

/// What PyTorch's MixedPrecisionPolicy says, for all units of a model at once. Parameters, their
/// gradients and the optimizer's state stay float32 on the leaves; what changes is what forward and
/// backward see.
///
/// A kept module that is no unit gets its input as it comes, in the unit's dtype: torch's norms
/// take that. A kept unit (Unit<M>, wrapped on its own) computes wholly in float32: its inputs are
/// cast to float32, and its float32 outputs to param_dtype by the unit that takes them.
struct MixedPrecision {
  /// kBFloat16 or kHalf: parameters are cast to it for forward and backward, and gathered in it.
  /// Unset: computes in the parameters' own dtype. With kHalf scale the loss.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// In which gradients are added up on their way, under no_sync too: kFloat, kBFloat16 or kHalf.
  /// Unset: the parameters' own dtype, float32. A lower one halves the gradient buffers; the sum
  /// over the ranks of one host is still formed in float32 and rounded once.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Floating-point tensors in what the model's forward returns are cast to it (of every outermost
  /// unit, where the model itself is no unit). Unset: returned as they are.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Casts floating-point tensors in the arguments of every unit's forward to the dtype that the
  /// unit computes in (see cast_tensors.h for what is found). Acts only with param_dtype.
  bool cast_forward_inputs = true;
  KeepPolicy keep_fp32 = keep_norms();
};

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::keep_modules_named;
using fsdp::keep_modules_of;
using fsdp::keep_norms;
using fsdp::keep_nothing;
using fsdp::KeepPolicy;
using fsdp::MixedPrecision;
}  // namespace convoy
