// Units whose forward is checkpointed, chosen by a policy; and how a unit runs such a forward.
#pragma once

#include "convoy/base/check.h"
#include "convoy/fsdp/policy.h"
#include "convoy/fsdp/unit_behaviour.h"
#include "convoy/recompute/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace convoy::fsdp {

/// Has the forward of every unit that `policy` chooses checkpointed from now on, in this model and
/// under whatever wraps it, before or after (torch's apply_activation_checkpointing):
///
///     convoy::checkpoint_units(model, convoy::wrap_units_of<Block>());
///
/// Nothing else of the model changes; forward keeps its signature, and parameters their names.
/// Returns how many units there are. All ranks make the same choice. A copy made by clone() is not
/// checkpointed. Errors: kInvalidArgument for a policy that chooses nothing or a module that is no
/// Unit; at the unit's forward kMisuse where its arguments cannot be copied or its result holds
/// tensors in a type that checkpoint() does not know.
std::size_t checkpoint_units(torch::nn::Module& model, const WrapPolicy& policy,
                             const CheckpointOptions& options = {});

template <typename Contained>
std::size_t checkpoint_units(const torch::nn::ModuleHolder<Contained>& model,
                             const WrapPolicy& policy, const CheckpointOptions& options = {}) {
  return checkpoint_units(static_cast<torch::nn::Module&>(*model.ptr()), policy, options);
}

namespace detail {

/// M's own forward of a module derived from M.
template <typename M>
struct BaseForward {
  template <typename Module, typename... Args>
  auto operator()(Module& module, Args&&... args) const
      -> decltype(module.M::forward(std::forward<Args>(args)...)) {
    return module.M::forward(std::forward<Args>(args)...);
  }
};

/// Throws kMisuse.
[[noreturn]] void refuse_checkpoint(const torch::nn::Module& module);
/// What keeps `module` alive until backward. Error: kMisuse for a module that nobody shares.
std::shared_ptr<const torch::nn::Module> shared(const torch::nn::Module& module);

/// Calls M's forward of `module`, which is the unit `unit`; checkpointed if the unit says so.
template <typename M, typename Module, typename... Args>
decltype(auto) forward_of(const UnitBase& unit, Module& module, Args&&... args) {
  using Result = std::invoke_result_t<BaseForward<M>, Module&, Args...>;
  // Not an argument by reference that forward may write to: it would get copies.
  constexpr bool kRunsOnCopies =
      (std::is_copy_constructible_v<std::decay_t<Args>> && ...) &&
      ((recompute::detail::content_of<std::decay_t<Args>>() !=
        recompute::detail::Content::kFixed) &&
       ...) &&
      std::is_invocable_r_v<Result, BaseForward<M>, Module&, std::decay_t<Args>...>;
  const auto& options = unit.convoy_checkpoint();
  if (options && at::GradMode::is_enabled()) {
    if constexpr (kRunsOnCopies && recompute::detail::Replaceable<Result>) {
      return static_cast<Result>(recompute::checkpoint(
          *options,
          [owner = shared(module), &module](auto&&... each) -> Result {
            return BaseForward<M>()(module, std::forward<decltype(each)>(each)...);
          },
          std::forward<Args>(args)...));
    } else {
      refuse_checkpoint(module);
    }
  }
  return static_cast<Result>(BaseForward<M>()(module, std::forward<Args>(args)...));
}

}  // namespace detail

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::checkpoint_units;
}  // namespace convoy
