// The state of an optimizer by the names of parameters, in whole tensors, in any strategy.
#pragma once

#include "convoy/checkpoint/safetensors.h"
#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <span>

namespace convoy::saving {

/// Note [Optimizer state by name]
/// Names are those of PyTorch's flattened optimizer state dict: "state.<parameter>.exp_avg" and so
/// on, whole tensors of the parameter's shape and dtype:
///   Adam, AdamW: step (int64 []), exp_avg, exp_avg_sq, with amsgrad also max_exp_avg_sq
///   SGD:         momentum_buffer
/// A parameter that has no state (never stepped; SGD without momentum) has step = 0 and nothing
/// else, so that what is missing from a file is never taken for what was never there. Parameters
/// that the optimizer does not step have no entries. The options of groups (learning rates, decays)
/// are not state: the program sets them.
///
/// Optimizers: convoy::optim::AdamW and SGD, torch::optim::Adam, AdamW and SGD.
/// All functions are collective over `comm` (null: one process), with the same spans on all ranks,
/// which must hold all parameters of the optimizer. Rank 0 reads and writes; the others hold no
/// more than a few MiB beyond their own. Errors are the same on all ranks: kInvalidArgument
/// (another optimizer, a parameter without a span), kMismatch naming a parameter whose state
/// differs between ranks that hold parts of it.

/// On rank 0 the state; empty on other ranks.
StateDict full_optimizer_state_dict(std::span<const ShardSpan> spans,
                                    const torch::optim::Optimizer& optimizer, Communicator* comm);

/// Sets the state of all parameters from rank 0's `state` (others pass anything), of this or of
/// another world and strategy. Errors: also kInvalidArgument, before anything is changed, naming
/// the entry that is missing, not wanted, or of another shape or dtype. The old state of each
/// parameter is given up before its new one is made, so that no rank holds both.
void load_full_optimizer_state_dict(std::span<const ShardSpan> spans,
                                    torch::optim::Optimizer& optimizer, Communicator* comm,
                                    const StateDict& state);

/// The same to and from a safetensors file, without the whole state in memory. save_optimizer is
/// not atomic: write into a StagedFolder. Errors: also kSystem; where reading fails half-way, the
/// optimizer has no state afterwards.
void save_optimizer(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                    const torch::optim::Optimizer& optimizer, Communicator* comm,
                    const Metadata& metadata = {});
void load_optimizer(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                    torch::optim::Optimizer& optimizer, Communicator* comm);

}  // namespace convoy::saving
