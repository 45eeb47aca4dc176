// Sorts a model's parameters into those that weight decay should pull and the others.
#include "convoy/optim/decay_groups.h"

#include <unordered_set>

namespace convoy::optim {

std::vector<ParamGroup> decay_groups(std::span<const ShardSpan> spans, double weight_decay) {
  std::vector<ParamGroup> groups(2);
  groups[0].weight_decay = weight_decay;
  groups[1].weight_decay = 0.0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& span : spans) {
    if (!span.leaf.defined() || !span.leaf.requires_grad()) continue;
    if (!seen.insert(span.leaf.unsafeGetTensorImpl()).second) continue;
    groups[span.sizes.size() >= 2 ? 0 : 1].params.push_back(span.leaf);
  }
  return groups;
}

}  // namespace convoy::optim
