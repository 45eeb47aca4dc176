// Goes through the modules from the innermost outwards, as sizes are of what inner units leave.
#include "unit_choice.h"

#include "convoy/base/check.h"
#include "convoy/base/suggest.h"

#include <algorithm>
#include <unordered_map>

namespace convoy::fsdp {
namespace {

constexpr std::size_t kNamesInText = 5;

// Elements of each module's own parameters, each tensor counted where it is registered first.
std::vector<std::int64_t> own_numels(const std::vector<ChosenModule>& modules,
                                     const std::unordered_set<const c10::TensorImpl*>& ignored) {
  std::unordered_set<const c10::TensorImpl*> seen = ignored;
  std::vector<std::int64_t> numels;
  for (const ChosenModule& one : modules) {
    std::int64_t numel = 0;
    for (const auto& parameter : one.module->named_parameters(/*recurse=*/false)) {
      if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) {
        numel += parameter.value().numel();
      }
    }
    numels.push_back(numel);
  }
  return numels;
}

std::string shown(const std::string& path) { return path.empty() ? kRootName : path; }

// Names the rules that have chosen a module which is no unit.
[[noreturn]] void refuse_plain(const WrapPolicy& policy, const std::vector<bool>& matched,
                               const ChosenModule& module) {
  std::string rules;
  for (std::size_t i = 0; i < matched.size(); ++i) {
    if (matched[i]) rules += (rules.empty() ? "" : " and ") + policy.rules()[i].description;
  }
  throw Error(
      ErrorKind::kInvalidArgument,
      concat("FSDP: ", rules, " matches module '", module.path, "' (", module.module->name(),
             "), which is not a convoy::Unit; write `using X = convoy::Unit<XImpl>;`"));
}

}  // namespace

std::string parent_path(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

std::string known_units(const std::string& pattern, const std::vector<std::string>& names) {
  return concat("; the units of this model are ", names.empty() ? "none" : quoted_list(names),
                did_you_mean(pattern, names));
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInText); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kNamesInText) text += concat(" and ", names.size() - kNamesInText, " more");
  return text;
}

UnitChoice choose_units(const torch::nn::Module& model, const WrapPolicy& policy,
                        const std::unordered_set<const c10::TensorImpl*>& ignored) {
  UnitChoice choice;
  std::unordered_map<std::string, std::size_t> index_of;
  for (const auto& item : model.named_modules()) {
    auto* unit = dynamic_cast<UnitBase*>(item.value().get());
    if (unit != nullptr && !item.key().empty()) choice.unit_names.push_back(item.key());
    index_of[item.key()] = choice.modules.size();
    choice.modules.push_back({.path = item.key(), .module = item.value().get(), .unit = unit});
  }
  for (const auto& rule : policy.rules()) {
    choice.rules.push_back(
        {.description = rule.description, .units = {}, .may_miss = rule.may_miss});
  }
  auto numels = own_numels(choice.modules, ignored);
  std::vector<bool> matched;
  for (std::size_t i = choice.modules.size(); i-- > 0;) {
    ChosenModule& one = choice.modules[i];
    const WrapCandidate candidate{one.path, *one.module, one.unit != nullptr, numels[i]};
    one.chosen = policy.chooses(candidate, matched);
    if (one.chosen && one.unit == nullptr) refuse_plain(policy, matched, one);
    for (std::size_t rule = 0; rule < matched.size(); ++rule) {
      if (!matched[rule] || one.unit == nullptr) continue;
      choice.rules[rule].units.push_back(shown(one.path));
      if (one.chosen) one.blocks = std::max(one.blocks, policy.rules()[rule].blocks);
    }
    if (!one.chosen && !one.path.empty()) numels[index_of[parent_path(one.path)]] += numels[i];
  }
  for (RuleHits& rule : choice.rules) std::reverse(rule.units.begin(), rule.units.end());
  return choice;
}

void require_hits(const UnitChoice& choice, const WrapPolicy& policy) {
  const auto units = [&] {
    return choice.unit_names.empty() ? "none" : quoted_list(choice.unit_names);
  };
  bool all_may_miss = true;
  for (const RuleHits& rule : choice.rules) {
    CONVOY_REQUIRE(!rule.units.empty() || rule.may_miss, kInvalidArgument,
                   "FSDP: ", rule.description, " matches no unit; the units of this model are ",
                   units());
    all_may_miss = all_may_miss && rule.may_miss;
  }
  const bool any = std::any_of(choice.modules.begin(), choice.modules.end(),
                               [](const ChosenModule& one) { return one.chosen; });
  CONVOY_REQUIRE(any || all_may_miss, kInvalidArgument, "FSDP: the policy ", policy.description(),
                 " chooses no unit, though each of its rules matches some; the units of this model "
                 "are ",
                 units());
}

}  // namespace convoy::fsdp
