// Chooses parameters of a model by name or by a function.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// Rules of which any may match; by default there are none and nothing is chosen. A rule that
/// matches no parameter is an error at wrapping.
class ParameterFilter {
 public:
  struct Rule {
    std::string description;
    std::function<bool(const std::string& name, const at::Tensor& parameter)> matches;
  };

  ParameterFilter() = default;
  explicit ParameterFilter(Rule rule) { rules_.push_back(std::move(rule)); }

  const std::vector<Rule>& rules() const noexcept { return rules_; }

  void add(const ParameterFilter& other) {
    rules_.insert(rules_.end(), other.rules_.begin(), other.rules_.end());
  }

 private:
  std::vector<Rule> rules_;
};

/// Parameters that either side chooses.
inline ParameterFilter operator|(ParameterFilter left, const ParameterFilter& right) {
  left.add(right);
  return left;
}

/// Parameters whose name in the model matches a pattern, as in wrap_units_named: "**.lora_*".
ParameterFilter parameters_named(std::string pattern);

/// Parameters for which `chooses(name, parameter)` is true. Must say the same on every rank.
ParameterFilter parameters_if(
    std::function<bool(const std::string& name, const at::Tensor& parameter)> chooses);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::ParameterFilter;
using fsdp::parameters_if;
using fsdp::parameters_named;
}  // namespace convoy
