// Sorts a model's parameters into those that weight decay should pull and the others.
#pragma once

#include <span>
#include <vector>

#include "convoy/flat/shard_span.h"
#include "convoy/optim/param_group.h"

namespace convoy::optim {

/// Two groups, in this order: parameters of two or more dimensions with `weight_decay`, the others
/// (biases, norms, scalars) with none. Decided by the whole parameter's shape, which a sharded leaf
/// may not show. Frozen parameters are left out, a tensor listed twice is in once; a group may be
/// empty.
/// `AdamW adam(decay_groups(wrapped.shard_spans(), 0.1), {.lr = 3e-4});`
std::vector<ParamGroup> decay_groups(std::span<const ShardSpan> spans, double weight_decay);

}  // namespace convoy::optim
