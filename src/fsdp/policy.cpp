// The rules by which units are chosen and kept, how they are joined, and the name patterns.
#include "convoy/fsdp/policy.h"

#include "convoy/base/check.h"
#include "convoy/fsdp/reshard_after_forward.h"
#include "convoy/fsdp/unit_behaviour.h"

#include <algorithm>

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

WrapPolicy::WrapPolicy(Rule rule) : steps_{0}, description_(rule.description) {
  rules_.push_back(std::move(rule));
}

bool WrapPolicy::chooses(const WrapCandidate& candidate, std::vector<bool>& matched) const {
  matched.assign(rules_.size(), false);
  std::vector<bool> stack;
  for (const int step : steps_) {
    if (step >= 0) {
      const auto rule = static_cast<std::size_t>(step);
      matched[rule] = rules_[rule].matches(candidate);
      stack.push_back(matched[rule]);
      continue;
    }
    const bool last = stack.back();
    if (step == kNot) {
      stack.back() = candidate.is_unit && !candidate.name.empty() && !last;
      continue;
    }
    stack.pop_back();
    stack.back() = step == kOr ? stack.back() || last : stack.back() && last;
  }
  return stack.back();
}

void WrapPolicy::join(const WrapPolicy& other, int operation, const char* sign) {
  const auto shift = static_cast<int>(rules_.size());
  rules_.insert(rules_.end(), other.rules_.begin(), other.rules_.end());
  for (const int step : other.steps_) steps_.push_back(step >= 0 ? step + shift : step);
  steps_.push_back(operation);
  description_ = "(" + description_ + sign + other.description_ + ")";
}

void WrapPolicy::negate() {
  steps_.push_back(kNot);
  description_ = "!" + description_;
}

void WrapPolicy::group(int blocks) {
  CONVOY_REQUIRE(blocks >= 1, kInvalidArgument, "group_units: ", blocks,
                 " blocks a unit; at least 1");
  for (Rule& rule : rules_) rule.blocks = blocks;
  description_ = concat("group_units(", description_, ", ", blocks, ")");
}

WrapPolicy::Rule detail::type_rule(const std::string& type_name,
                                   std::function<bool(const torch::nn::Module&)> is_type) {
  return {.description = "wrap_units_of<" + type_name + ">()",
          .matches = [is_type = std::move(is_type)](const WrapCandidate& candidate) {
            return is_type(candidate.module);
          }};
}

WrapPolicy wrap_units_named(std::string pattern) {
  CONVOY_REQUIRE(!pattern.empty(), kInvalidArgument,
                 "wrap_units_named: the pattern is empty; the root is a unit anyway");
  return WrapPolicy({.description = "wrap_units_named(\"" + pattern + "\")",
                     .matches = [pattern](const WrapCandidate& candidate) {
                       return !candidate.name.empty() && name_matches(pattern, candidate.name);
                     }});
}

WrapPolicy wrap_units_larger_than(std::int64_t numel) {
  CONVOY_REQUIRE(numel >= 1, kInvalidArgument, "wrap_units_larger_than: ", numel,
                 " elements; at least 1");
  return WrapPolicy({.description = concat("wrap_units_larger_than(", numel, ")"),
                     .matches = [numel](const WrapCandidate& candidate) {
                       return candidate.is_unit && !candidate.name.empty() &&
                              candidate.numel >= numel;
                     }});
}

WrapPolicy wrap_units_if(
    std::function<bool(const std::string& name, const torch::nn::Module& module)> chooses) {
  CONVOY_REQUIRE(chooses != nullptr, kInvalidArgument, "wrap_units_if: the function is empty");
  return WrapPolicy({.description = "wrap_units_if(...)",
                     .matches = [chooses = std::move(chooses)](const WrapCandidate& candidate) {
                       return candidate.is_unit && !candidate.name.empty() &&
                              chooses(candidate.name, candidate.module);
                     }});
}

ReshardAfterForward ReshardAfterForward::keeping(std::string pattern) {
  CONVOY_REQUIRE(!pattern.empty(), kInvalidArgument, "keep_after_forward: the pattern is empty");
  ReshardAfterForward choice(
      [pattern](const std::string& unit) { return !name_matches(pattern, unit); });
  choice.kept_pattern_ = std::move(pattern);
  return choice;
}

WrapPolicy wrap_every_unit() {
  return WrapPolicy({.description = "wrap_every_unit()",
                     .matches = [](const WrapCandidate& candidate) { return candidate.is_unit; },
                     .may_miss = true});
}

WrapPolicy wrap_root_only() {
  return WrapPolicy({.description = "wrap_root_only()",
                     .matches = [](const WrapCandidate&) { return false; },
                     .may_miss = true});
}

}  // namespace convoy::fsdp
