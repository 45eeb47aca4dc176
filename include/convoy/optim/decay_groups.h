// Sorts a model's parameters into those that weight decay should pull and the others.
#pragma once

#include "convoy/flat/shard_span.h"
#include "convoy/optim/param_group.h"

#include <span>
#include <vector>

namespace convoy::optim {

/// Two groups, in this order: parameters of two or more dimensions with `weight_decay`, the others
/// (biases, norms, scalars) with none. Decided by the whole parameter's shape, which a sharded leaf
/// may not show. Frozen parameters are left out, a tensor listed twice is in once; a group may be
/// empty.
/// `AdamW adam(decay_groups(wrapped.shard_spans(), 0.1), {.lr = 3e-4});`
std::vector<ParamGroup> decay_groups(std::span<const ShardSpan> spans, double weight_decay);

/// The same from parameters that somebody else has split (members `decay` and `no_decay`, such as
/// the result of split_by_decay).
template <class Split>
requires requires(const Split& split) {
  std::vector<at::Tensor>(split.decay);
  std::vector<at::Tensor>(split.no_decay);
}
std::vector<ParamGroup> decay_groups(const Split& split, double weight_decay) {
  const auto trainable = [](std::vector<at::Tensor> params) {
    std::erase_if(params, [](const at::Tensor& param) { return !param.requires_grad(); });
    return params;
  };
  return {{.params = trainable(split.decay), .weight_decay = weight_decay},
          {.params = trainable(split.no_decay), .weight_decay = 0.0}};
}

}  // namespace convoy::optim
