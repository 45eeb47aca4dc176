// Asks a policy about every module of a model.
#pragma once

#include "convoy/fsdp/policy.h"
#include "convoy/fsdp/unit_behaviour.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace convoy::fsdp {

struct ChosenModule {
  std::string path;  ///< Empty for the root.
  const torch::nn::Module* module = nullptr;
  UnitBase* unit = nullptr;  ///< Null if it is none.
  bool chosen = false;       ///< By the policy; the root, if a unit, always.
  int blocks = 1;            ///< See group_units.
};

/// The units that one rule of a policy has matched.
struct RuleHits {
  std::string description;
  std::vector<std::string> units;  ///< In registration order; "(root)" is the root.
  bool may_miss = false;
};

struct UnitChoice {
  std::vector<ChosenModule> modules;  ///< In registration order, outer before inner.
  std::vector<RuleHits> rules;
  std::vector<std::string> unit_names;  ///< Of all units but the root, chosen or not.
};

/// The unit that holds what no other takes.
inline constexpr const char* kRootName = "(root)";

/// "a.b" of "a.b.c"; empty for a child of the root.
std::string parent_path(const std::string& path);

/// `ignored` are tensors that count as no parameters. Error: kInvalidArgument for a chosen module
/// that is no unit.
UnitChoice choose_units(const torch::nn::Module& model, const WrapPolicy& policy,
                        const std::unordered_set<const c10::TensorImpl*>& ignored);

/// Error: kInvalidArgument naming the rule that matches no unit, or the policy that chooses none.
void require_hits(const UnitChoice& choice, const WrapPolicy& policy);

/// "; the units of this model are 'a' and 7 more; did you mean 'a'?", to be put behind an error
/// about `pattern`, which is none of `names`.
std::string known_units(const std::string& pattern, const std::vector<std::string>& names);

/// "'a', 'b' and 7 more".
std::string quoted_list(const std::vector<std::string>& names);

}  // namespace convoy::fsdp
