// Stochastic gradient descent on Convoy's own kernel.
#include "convoy/optim/sgd.h"

#include "convoy/base/check.h"
#include "optim/elementwise.h"
#include "optim/leaves.h"
#include "optim/parallel_ranges.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>

namespace convoy::optim {
namespace {

constexpr const char* kName = "SGD";
constexpr std::int64_t kCut = 16;  // Threads cut at cache lines of float32.

using TorchOptions = torch::optim::SGDOptions;
using State = torch::optim::SGDParamState;

const TorchOptions& checked(const TorchOptions& options) {
  const auto require = [](double value, const char* name) {
    CONVOY_REQUIRE(std::isfinite(value) && value >= 0, kInvalidArgument, "SGD: ", name, " is ",
                   value, "; it must be finite and not negative");
  };
  require(options.lr(), "lr");
  require(options.momentum(), "momentum");
  require(options.weight_decay(), "weight_decay");
  CONVOY_REQUIRE(std::isfinite(options.dampening()), kInvalidArgument, "SGD: dampening is ",
                 options.dampening());
  CONVOY_REQUIRE(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0),
                 kInvalidArgument, "SGD: nesterov needs a momentum and no dampening, given are ",
                 options.momentum(), " and ", options.dampening());
  return options;
}

TorchOptions to_torch(const SGDOptions& options) {
  return checked(TorchOptions(options.lr)
                     .momentum(options.momentum)
                     .dampening(options.dampening)
                     .weight_decay(options.weight_decay)
                     .nesterov(options.nesterov));
}

/// One leaf with its state, ready for the kernel.
struct Update {
  const TorchOptions* options;
  at::Tensor momentum_buffer;  ///< Undefined without momentum and for an empty leaf.
  bool first = false;
};

template <typename T>
void run(const std::vector<SteppedLeaf>& leaves, const std::vector<Update>& updates) {
  std::vector<SGDArrays<T>> arrays;
  std::vector<SGDScalars<T>> scalars;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].values.scalar_type() != c10::CppTypeToScalarType<T>()) continue;
    const auto& u = updates[i];
    arrays.push_back(
        {leaves[i].values.template mutable_data_ptr<T>(),
         leaves[i].gradient.template const_data_ptr<T>(),
         u.momentum_buffer.defined() ? u.momentum_buffer.template mutable_data_ptr<T>() : nullptr});
    scalars.push_back({.weight_decay = static_cast<T>(u.options->weight_decay()),
                       .momentum = static_cast<T>(u.options->momentum()),
                       .one_minus_dampening = static_cast<T>(1 - u.options->dampening()),
                       .lr = static_cast<T>(u.options->lr()),
                       .first = u.first,
                       .nesterov = u.options->nesterov()});
    lengths.push_back(leaves[i].values.numel());
  }
  parallel_pieces(lengths, kParallelGrain, kCut,
                  [&](std::size_t i, std::int64_t begin, std::int64_t end) {
                    update_sgd(arrays[i], scalars[i], begin, end);
                  });
}

}  // namespace

SGD::SGD(FromTorch, std::vector<torch::optim::OptimizerParamGroup> groups,
         const TorchOptions& options)
    : torch::optim::SGD(checked_groups(groups, kName), checked(options)) {
  for (const auto& group : param_groups_)
    checked(static_cast<const TorchOptions&>(group.options()));
}

SGD::SGD(std::vector<at::Tensor> params, SGDOptions options)
    : SGD(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

SGD::SGD(std::vector<ParamGroup> groups, SGDOptions options)
    : torch::optim::SGD(bare_groups(groups, kName), to_torch(options)) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto own = options;
    own.lr = groups[i].lr.value_or(options.lr);
    own.weight_decay = groups[i].weight_decay.value_or(options.weight_decay);
    param_groups_[i].set_options(std::make_unique<TorchOptions>(to_torch(own)));
  }
}

at::Tensor SGD::step(LossClosure closure) {
  auto loss = evaluate(closure);
  const at::NoGradGuard no_grad;
  const auto leaves = collect_leaves(param_groups_, kName);

  // Everything that can throw comes first, so that an error leaves all parameters unchanged.
  std::vector<Update> updates;
  updates.reserve(leaves.size());
  for (const auto& leaf : leaves) {
    auto& u = updates.emplace_back();
    u.options = &checked(static_cast<const TorchOptions&>(param_groups_[leaf.group].options()));
    if (leaf.values.numel() == 0 || u.options->momentum() == 0) continue;
    auto found = state_.find(leaf.param.unsafeGetTensorImpl());
    const auto before = found == state_.end()
                            ? at::Tensor()
                            : static_cast<State&>(*found->second).momentum_buffer();
    u.first = !before.defined();
    u.momentum_buffer = matching_state(leaf, before, "momentum_buffer");
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!updates[i].momentum_buffer.defined()) continue;
    auto& slot = state_[leaves[i].param.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    static_cast<State&>(*slot).momentum_buffer(updates[i].momentum_buffer);
  }
  run<float>(leaves, updates);
  run<double>(leaves, updates);
  finish_leaves(leaves);
  return loss;
}

}  // namespace convoy::optim
