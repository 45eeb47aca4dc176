// decay_groups for whole models, sharded or not: optim's grouping by fsdp's knowledge of shapes.
#pragma once

#include "convoy/fsdp/model_helpers.h"
#include "convoy/optim/decay_groups.h"
#include "convoy/optim/model_concepts.h"

#include <span>
#include <vector>

namespace convoy {

using optim::decay_groups;

/// The two groups of optim::decay_groups for a model, its holder, or a DistributedDataParallel or
/// FullyShardedDataParallel around it. Goes by whole shapes also where the leaves are slices.
/// `optim::AdamW adam(decay_groups(model, 0.1), {.lr = 3e-4});`
template <detail::AnyModel Model>
std::vector<optim::ParamGroup> decay_groups(const Model& model, double weight_decay) {
  if constexpr (detail::WrappedModel<Model>) {
    const auto& spans = model.shard_spans();
    return optim::decay_groups(std::span<const ShardSpan>(spans), weight_decay);
  } else if constexpr (detail::PlainModel<Model>) {
    return optim::decay_groups(fsdp::split_by_decay(model), weight_decay);
  } else {
    return optim::decay_groups(fsdp::split_by_decay(*model), weight_decay);
  }
}

}  // namespace convoy
