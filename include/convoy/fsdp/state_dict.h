// Full parameters out of a sharded model and back into it, under their original names.
#pragma once

#include "convoy/fsdp/fsdp.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <string>

namespace convoy::fsdp {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Calls `visit(name, full)` on rank 0 for every parameter name in order of registration (a tied
/// tensor once for each of its names). `full` is contiguous and valid during the call only: no more
/// than one unit is full at a time. Collective; other ranks only take part.
void for_each_full_parameter(
    const FullySharded& model,
    const std::function<void(const std::string& name, const at::Tensor& full)>& visit);

/// On rank 0 a copy of every parameter and buffer under its original name; empty on other ranks.
/// Collective.
StateDict full_state_dict(const FullySharded& model);

/// Sets every parameter and buffer on all ranks from rank 0's `state` (others pass anything).
/// Optimizer state is left as it is. Collective. Errors: kInvalidArgument, the same on all ranks
/// and before anything is changed, naming what is missing, not wanted, or of another shape; values
/// of another floating dtype are converted.
void load_full_state_dict(FullySharded& model, const StateDict& state);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::for_each_full_parameter;
using fsdp::full_state_dict;
using fsdp::load_full_state_dict;
using fsdp::StateDict;
}  // namespace convoy
