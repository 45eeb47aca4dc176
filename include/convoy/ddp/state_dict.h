// Parameters out of a replicated model and back into it, under their original names.
#pragma once

#include "convoy/ddp/ddp.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <string>
#include <utility>

namespace convoy::ddp {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Calls `visit(name, parameter)` on rank 0 for every parameter name in order of registration (a
/// tied tensor once for each of its names). `parameter` is contiguous and valid during the call
/// only. Does not communicate: the replicas are equal.
void for_each_full_parameter(
    const Replica& replica,
    const std::function<void(const std::string& name, const at::Tensor& full)>& visit);

/// On rank 0 a copy of every parameter and buffer under its original name; empty on other ranks.
/// Does not communicate.
StateDict full_state_dict(const Replica& replica);

/// Sets every parameter and buffer on all ranks from rank 0's `state` (others pass anything).
/// Optimizer state is left as it is. Collective. Errors: kInvalidArgument, the same on all ranks
/// and before anything is changed, naming what is missing, not wanted, or of another shape; values
/// of another floating dtype are converted.
void load_full_state_dict(Replica& replica, const StateDict& state);

}  // namespace convoy::ddp

namespace convoy {

template <class Holder, class Visit>
void for_each_full_parameter(const DistributedDataParallel<Holder>& wrapped, Visit&& visit) {
  ddp::for_each_full_parameter(wrapped.replica(), std::forward<Visit>(visit));
}
template <class Holder>
ddp::StateDict full_state_dict(const DistributedDataParallel<Holder>& wrapped) {
  return ddp::full_state_dict(wrapped.replica());
}
template <class Holder>
void load_full_state_dict(DistributedDataParallel<Holder>& wrapped, const ddp::StateDict& state) {
  ddp::load_full_state_dict(wrapped.replica(), state);
}

}  // namespace convoy
