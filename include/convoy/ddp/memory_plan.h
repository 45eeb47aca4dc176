// The memory of one rank under DistributedDataParallel, before anything is allocated.
#pragma once

#include "convoy/flat/memory_plan.h"

namespace torch::nn {
class Module;
}

namespace convoy::ddp {

/// Predicted bytes of every rank, for an optimizer that keeps `optimizer_states` values for every
/// element. Does not depend on the bucket sizes. Allocates nothing; parameters may be on the meta
/// device.
MemoryPlan plan_memory(const torch::nn::Module& model, int optimizer_states = kAdamStates);

}  // namespace convoy::ddp
