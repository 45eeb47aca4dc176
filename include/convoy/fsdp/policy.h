// Which units of a model FSDP shards on their own.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// A module that a policy is asked about.
struct WrapCandidate {
  const std::string& name;  ///< Path in the model; empty for the root.
  const torch::nn::Module& module;
  bool is_unit = false;
  /// Elements of the parameters in it that no unit chosen inside of it takes, each tensor once.
  std::int64_t numel = 0;
};

/// Rules joined by `|`, `&` and `!`. A unit that it chooses is sharded on its own, and the root
/// unit takes the rest; inner modules are asked before those around them. Errors at wrapping,
/// because a silent miss would gather the whole model at once: a rule that no unit matches (unless
/// may_miss), rules that together choose no unit, and a chosen module that is no Unit.
class WrapPolicy {
 public:
  struct Rule {
    std::string description;
    std::function<bool(const WrapCandidate&)> matches;
    bool may_miss = false;
    int blocks = 1;  ///< See group_units.
  };

  explicit WrapPolicy(Rule rule);

  const std::vector<Rule>& rules() const noexcept { return rules_; }
  /// As it was written, for messages.
  const std::string& description() const noexcept { return description_; }
  /// Whether the module is to be a unit of its own. `matched[i]` tells what rule i said.
  bool chooses(const WrapCandidate& candidate, std::vector<bool>& matched) const;

  /// What `|`, `&`, `!` and group_units do.
  void join_or(const WrapPolicy& other) { join(other, kOr, " | "); }
  void join_and(const WrapPolicy& other) { join(other, kAnd, " & "); }
  void negate();
  void group(int blocks);

 private:
  /// The policy in postfix order: a rule by its index, or an operation on what came before.
  static constexpr int kOr = -1, kAnd = -2, kNot = -3;

  void join(const WrapPolicy& other, int operation, const char* sign);

  std::vector<Rule> rules_;
  std::vector<int> steps_;
  std::string description_;
};

/// Units that either side chooses.
inline WrapPolicy operator|(WrapPolicy left, const WrapPolicy& right) {
  left.join_or(right);
  return left;
}

/// Units that both sides choose.
inline WrapPolicy operator&(WrapPolicy left, const WrapPolicy& right) {
  left.join_and(right);
  return left;
}

/// Units that `policy` does not choose. Its rules must match something all the same.
inline WrapPolicy operator!(WrapPolicy policy) {
  policy.negate();
  return policy;
}

/// Of the units that `policy` chooses, every `blocks` that follow one another in one container
/// share a unit: one flat buffer, one gather and one reduction, for blocks too small to fill them
/// alone. The first that runs gathers all of them; they are given up when all have run, or when the
/// model's forward ends. Error: kInvalidArgument for blocks < 1.
inline WrapPolicy group_units(WrapPolicy policy, int blocks) {
  policy.group(blocks);
  return policy;
}

namespace detail {

template <typename T>
struct ModuleOf {
  using type = T;
};
template <typename T>
requires requires { typename T::ContainedType; }
struct ModuleOf<T> {
  using type = typename T::ContainedType;
};

WrapPolicy::Rule type_rule(const std::string& type_name,
                           std::function<bool(const torch::nn::Module&)> is_type);

}  // namespace detail

/// Units whose module is an M: `wrap_units_of<BlockImpl>()`; a holder (`Block`) works as well.
template <typename M>
WrapPolicy wrap_units_of() {
  using Module = typename detail::ModuleOf<M>::type;
  return WrapPolicy(
      detail::type_rule(c10::demangle(typeid(Module).name()), [](const torch::nn::Module& module) {
        return dynamic_cast<const Module*>(&module) != nullptr;
      }));
}

/// Units whose name in the model matches a pattern: `*` stands for anything but a dot, `**` for
/// anything, `?` for one character other than a dot. "blocks.*" takes blocks.0 but not
/// blocks.0.mlp.
WrapPolicy wrap_units_named(std::string pattern);

/// Units with at least `numel` elements of parameters, not counting those of units chosen inside of
/// them (PyTorch's size_based_auto_wrap_policy). Error: kInvalidArgument for numel < 1.
WrapPolicy wrap_units_larger_than(std::int64_t numel);

/// Units for which `chooses(name, module)` is true. Asked about units only, and not about the root.
WrapPolicy wrap_units_if(
    std::function<bool(const std::string& name, const torch::nn::Module& module)> chooses);

/// Every unit in the model (the default). Matches none without complaint: then the root holds all.
WrapPolicy wrap_every_unit();

/// No unit but the root: the whole model is gathered at once.
WrapPolicy wrap_root_only();

/// Whether `name` matches `pattern`, as in wrap_units_named.
bool name_matches(std::string_view pattern, std::string_view name);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::group_units;
using fsdp::wrap_every_unit;
using fsdp::wrap_root_only;
using fsdp::wrap_units_if;
using fsdp::wrap_units_larger_than;
using fsdp::wrap_units_named;
using fsdp::wrap_units_of;
using fsdp::WrapPolicy;
}  // namespace convoy
