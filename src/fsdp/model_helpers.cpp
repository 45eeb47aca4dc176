// Walks a model's modules and asks its units for whole shapes.
#include "convoy/fsdp/model_helpers.h"

#include "convoy/fsdp/unit_behaviour.h"

#include <functional>
#include <numeric>
#include <unordered_set>

namespace convoy::fsdp {
namespace {

using Seen = std::unordered_set<const c10::TensorImpl*>;

void visit(const torch::nn::Module& module, const std::string& prefix,
           const UnitBehaviour* enclosing, Seen& seen, std::vector<WholeParameter>& found) {
  const auto* unit = dynamic_cast<const UnitBase*>(&module);
  if (unit != nullptr && unit->convoy_unit_behaviour()) {
    enclosing = unit->convoy_unit_behaviour().get();
  }
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& leaf = item.value();
    if (!seen.insert(leaf.unsafeGetTensorImpl()).second) continue;
    found.push_back({prefix + item.key(), leaf,
                     enclosing != nullptr ? enclosing->full_sizes(leaf) : leaf.sizes().vec()});
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) visit(*child.value(), prefix + child.key() + ".", enclosing, seen, found);
  }
}

}  // namespace

std::vector<WholeParameter> whole_parameters(const torch::nn::Module& model) {
  std::vector<WholeParameter> found;
  Seen seen;
  visit(model, "", nullptr, seen, found);
  return found;
}

std::int64_t count_parameters(const torch::nn::Module& model) {
  std::int64_t total = 0;
  for (const WholeParameter& parameter : whole_parameters(model)) {
    total += std::accumulate(parameter.sizes.begin(), parameter.sizes.end(), std::int64_t{1},
                             std::multiplies<>());
  }
  return total;
}

DecaySplit split_by_decay(const torch::nn::Module& model) {
  DecaySplit split;
  for (const WholeParameter& parameter : whole_parameters(model)) {
    (parameter.sizes.size() >= 2 ? split.decay : split.no_decay).push_back(parameter.leaf);
  }
  return split;
}

}  // namespace convoy::fsdp
