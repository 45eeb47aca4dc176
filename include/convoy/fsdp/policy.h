// Which units of a model FSDP shards on their own: by module type, by name pattern, or both.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// A list of rules; a unit that any of them matches is sharded on its own, and the root unit takes
/// the rest. A rule that matches a module which is no Unit, or (unless may_miss) nothing at all, is
/// an error at wrapping: a silent miss would gather the whole model at once.
class WrapPolicy {
 public:
  struct Rule {
    std::string description;
    std::function<bool(const std::string& name, const torch::nn::Module& module)> matches;
    bool may_miss = false;
  };

  explicit WrapPolicy(Rule rule) { rules_.push_back(std::move(rule)); }

  const std::vector<Rule>& rules() const noexcept { return rules_; }
  void add(const WrapPolicy& other) {
    rules_.insert(rules_.end(), other.rules_.begin(), other.rules_.end());
  }

 private:
  std::vector<Rule> rules_;
};

/// Units that either side matches.
inline WrapPolicy operator|(WrapPolicy left, const WrapPolicy& right) {
  left.add(right);
  return left;
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

/// Every unit in the model (the default). Matches none without complaint: then the root holds all.
WrapPolicy wrap_every_unit();

/// No unit but the root: the whole model is gathered at once.
WrapPolicy wrap_root_only();

/// Whether `name` matches `pattern`, as in wrap_units_named.
bool name_matches(std::string_view pattern, std::string_view name);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::wrap_every_unit;
using fsdp::wrap_root_only;
using fsdp::wrap_units_named;
using fsdp::wrap_units_of;
using fsdp::WrapPolicy;
}  // namespace convoy
