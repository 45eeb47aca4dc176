// The rules by which units are chosen, and the name patterns.
#include "convoy/fsdp/policy.h"

#include "convoy/base/check.h"
#include "convoy/fsdp/unit_behaviour.h"

namespace convoy::fsdp {

bool name_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    const bool dots = pattern.starts_with("**");
    const std::string_view rest = pattern.substr(dots ? 2 : 1);
    for (std::size_t taken = 0;; ++taken) {
      if (name_matches(rest, name.substr(taken))) return true;
      if (taken == name.size() || (!dots && name[taken] == '.')) return false;
    }
  }
  if (name.empty()) return false;
  const bool same = pattern.front() == '?' ? name.front() != '.' : pattern.front() == name.front();
  return same && name_matches(pattern.substr(1), name.substr(1));
}

WrapPolicy::Rule detail::type_rule(const std::string& type_name,
                                   std::function<bool(const torch::nn::Module&)> is_type) {
  return {.description = "wrap_units_of<" + type_name + ">()",
          .matches = [is_type = std::move(is_type)](
                         const std::string&, const torch::nn::Module& m) { return is_type(m); }};
}

WrapPolicy wrap_units_named(std::string pattern) {
  CONVOY_REQUIRE(!pattern.empty(), kInvalidArgument,
                 "wrap_units_named: the pattern is empty; the root is a unit anyway");
  return WrapPolicy({.description = "wrap_units_named(\"" + pattern + "\")",
                     .matches = [pattern](const std::string& name, const torch::nn::Module&) {
                       return !name.empty() && name_matches(pattern, name);
                     }});
}

WrapPolicy wrap_every_unit() {
  return WrapPolicy({.description = "wrap_every_unit()",
                     .matches =
                         [](const std::string&, const torch::nn::Module& module) {
                           return dynamic_cast<const UnitBase*>(&module) != nullptr;
                         },
                     .may_miss = true});
}

WrapPolicy wrap_root_only() {
  return WrapPolicy({.description = "wrap_root_only()",
                     .matches = [](const std::string&, const torch::nn::Module&) { return false; },
                     .may_miss = true});
}

}  // namespace convoy::fsdp
