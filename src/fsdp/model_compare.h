// Compares what the ranks are about to shard, before anything else, with one verdict for all.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/fsdp/options.h"
#include "unit_plan.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace convoy::fsdp {

/// One line for each thing that must be equal on all ranks: options, parameters, buffers.
std::vector<std::string> describe_for_comparison(const UnitPlan& plan,
                                                 const torch::nn::Module& model,
                                                 const Options& options);

/// Error: kMismatch naming the first line in which the lowest differing rank differs from rank 0;
/// the same text on all ranks. Collective.
void compare_over_ranks(Communicator& comm, const std::vector<std::string>& lines);

/// Gives every rank rank 0's buffers (running statistics and the like). Collective.
void broadcast_buffers(Communicator& comm, torch::nn::Module& model);

}  // namespace convoy::fsdp
