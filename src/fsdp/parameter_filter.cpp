// The rules by which parameters are chosen.
#include "convoy/fsdp/parameter_filter.h"

#include "convoy/base/check.h"
#include "convoy/fsdp/policy.h"

namespace convoy::fsdp {

ParameterFilter parameters_named(std::string pattern) {
  CONVOY_REQUIRE(!pattern.empty(), kInvalidArgument, "parameters_named: the pattern is empty");
  return ParameterFilter({.description = "parameters_named(\"" + pattern + "\")",
                          .matches = [pattern](const std::string& name, const at::Tensor&) {
                            return name_matches(pattern, name);
                          }});
}

ParameterFilter parameters_if(
    std::function<bool(const std::string& name, const at::Tensor& parameter)> chooses) {
  CONVOY_REQUIRE(chooses != nullptr, kInvalidArgument, "parameters_if: the function is empty");
  return ParameterFilter({.description = "parameters_if(...)", .matches = std::move(chooses)});
}

}  // namespace convoy::fsdp
