// Sums over the parameters, and the padding of the buckets.
#include "convoy/ddp/memory_plan.h"

#include "ddp/bucket_plan.h"

#include <torch/nn/module.h>

#include <unordered_set>
#include <vector>

namespace convoy::ddp {

MemoryPlan plan_memory(const torch::nn::Module& model, int optimizer_states) {
  MemoryPlan memory;
  std::vector<PlanParameter> trainable;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    memory.parameters += bytes;
    if (!parameter.requires_grad()) continue;
    memory.gradients += bytes;
    trainable.push_back({parameter.numel(), parameter.scalar_type()});
  }
  memory.optimizer = memory.gradients * optimizer_states;
  for (const at::Tensor& buffer : model.buffers()) {
    memory.buffers += static_cast<std::int64_t>(buffer.nbytes());
  }
  std::int64_t buckets = 0;
  for (const FlatPlan& flat :
       plan_buckets(trainable, reverse_order(trainable.size()), BucketLimits{}).flats) {
    buckets += flat.numel * static_cast<std::int64_t>(c10::elementSize(flat.dtype));
  }
  memory.gradient_buffers = buckets - memory.gradients;
  return memory;
}

}  // namespace convoy::ddp
