// AdamW on Convoy's own kernel.
#include "convoy/optim/adamw.h"

#include "convoy/base/check.h"
#include "optim/elementwise.h"
#include "optim/leaves.h"
#include "optim/parallel_ranges.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>

namespace convoy::optim {
namespace {

constexpr const char* kName = "AdamW";
constexpr std::int64_t kCut = 16;  // Threads cut at cache lines of float32.

using TorchOptions = torch::optim::AdamWOptions;
using State = torch::optim::AdamWParamState;

const TorchOptions& checked(const TorchOptions& options) {
  const auto [beta1, beta2] = options.betas();
  CONVOY_REQUIRE(std::isfinite(options.lr()) && options.lr() >= 0, kInvalidArgument,
                 "AdamW: lr is ", options.lr(), "; it must be finite and not negative");
  CONVOY_REQUIRE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, kInvalidArgument,
                 "AdamW: betas are ", beta1, " and ", beta2, "; they must be in [0, 1)");
  CONVOY_REQUIRE(std::isfinite(options.eps()) && options.eps() >= 0, kInvalidArgument,
                 "AdamW: eps is ", options.eps(), "; it must be finite and not negative");
  CONVOY_REQUIRE(std::isfinite(options.weight_decay()) && options.weight_decay() >= 0,
                 kInvalidArgument, "AdamW: weight_decay is ", options.weight_decay(),
                 "; it must be finite and not negative");
  return options;
}

TorchOptions to_torch(const AdamWOptions& options) {
  return checked(TorchOptions(options.lr)
                     .betas({options.betas.first, options.betas.second})
                     .eps(options.eps)
                     .weight_decay(options.weight_decay)
                     .amsgrad(options.amsgrad));
}

/// The options and state of one leaf, ready for the kernel. The tensors are undefined for an empty
/// leaf, the last one also without amsgrad.
struct Update {
  const TorchOptions* options;
  std::int64_t step = 0;
  at::Tensor exp_avg, exp_avg_sq, max_exp_avg_sq;
};

template <typename T>
AdamWScalars<T> scalars_of(const TorchOptions& options, std::int64_t step) {
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(step);
  const double correction1 = 1 - std::pow(beta1, steps);
  const double correction2_sqrt = std::sqrt(1 - std::pow(beta2, steps));
  return {.keep = static_cast<T>(1 - options.lr() * options.weight_decay()),
          .one_minus_beta1 = static_cast<T>(1 - beta1),
          .beta2 = static_cast<T>(beta2),
          .one_minus_beta2 = static_cast<T>(1 - beta2),
          .step_size = static_cast<T>(options.lr() * correction2_sqrt / correction1),
          .eps = static_cast<T>(options.eps() * correction2_sqrt)};
}

template <typename T>
void run(const std::vector<SteppedLeaf>& leaves, const std::vector<Update>& updates) {
  std::vector<AdamWArrays<T>> arrays;
  std::vector<AdamWScalars<T>> scalars;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto& u = updates[i];
    if (!u.exp_avg.defined() || leaves[i].values.scalar_type() != c10::CppTypeToScalarType<T>()) {
      continue;
    }
    arrays.push_back(
        {leaves[i].values.template mutable_data_ptr<T>(),
         leaves[i].gradient.template const_data_ptr<T>(), u.exp_avg.template mutable_data_ptr<T>(),
         u.exp_avg_sq.template mutable_data_ptr<T>(),
         u.max_exp_avg_sq.defined() ? u.max_exp_avg_sq.template mutable_data_ptr<T>() : nullptr});
    scalars.push_back(scalars_of<T>(*u.options, u.step));
    lengths.push_back(leaves[i].values.numel());
  }
  parallel_pieces(lengths, kParallelGrain, kCut,
                  [&](std::size_t i, std::int64_t begin, std::int64_t end) {
                    update_adamw(arrays[i], scalars[i], begin, end);
                  });
}

}  // namespace

AdamW::AdamW(FromTorch, std::vector<torch::optim::OptimizerParamGroup> groups,
             const TorchOptions& options)
    : torch::optim::AdamW(checked_groups(groups, kName), checked(options)) {
  for (const auto& group : param_groups_)
    checked(static_cast<const TorchOptions&>(group.options()));
}

AdamW::AdamW(std::vector<at::Tensor> params, AdamWOptions options)
    : AdamW(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

AdamW::AdamW(std::vector<ParamGroup> groups, AdamWOptions options)
    : torch::optim::AdamW(bare_groups(groups, kName), to_torch(options)) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto own = options;
    own.lr = groups[i].lr.value_or(options.lr);
    own.weight_decay = groups[i].weight_decay.value_or(options.weight_decay);
    param_groups_[i].set_options(std::make_unique<TorchOptions>(to_torch(own)));
  }
}

at::Tensor AdamW::step(LossClosure closure) {
  auto loss = evaluate(closure);
  const at::NoGradGuard no_grad;
  const auto leaves = collect_leaves(param_groups_, kName);

  // Everything that can throw comes first, so that an error leaves all parameters unchanged.
  std::vector<Update> updates;
  updates.reserve(leaves.size());
  for (const auto& leaf : leaves) {
    auto& u = updates.emplace_back();
    u.options = &checked(static_cast<const TorchOptions&>(param_groups_[leaf.group].options()));
    if (leaf.values.numel() == 0) continue;
    const auto found = state_.find(leaf.param.unsafeGetTensorImpl());
    const State before =
        found == state_.end() ? State() : static_cast<const State&>(*found->second);
    u.step = before.step() + 1;
    u.exp_avg = matching_state(leaf, before.exp_avg(), "exp_avg");
    u.exp_avg_sq = matching_state(leaf, before.exp_avg_sq(), "exp_avg_sq");
    if (u.options->amsgrad()) {
      u.max_exp_avg_sq = matching_state(leaf, before.max_exp_avg_sq(), "max_exp_avg_sq");
    }
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto& u = updates[i];
    if (!u.exp_avg.defined()) continue;
    auto& slot = state_[leaves[i].param.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    auto& state = static_cast<State&>(*slot);
    state.step(u.step).exp_avg(u.exp_avg).exp_avg_sq(u.exp_avg_sq);
    if (u.max_exp_avg_sq.defined()) state.max_exp_avg_sq(u.max_exp_avg_sq);
  }
  run<float>(leaves, updates);
  run<double>(leaves, updates);
  finish_leaves(leaves);
  return loss;
}

}  // namespace convoy::optim
