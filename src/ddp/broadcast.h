// Copies rank 0's tensors to the other ranks, many in one operation.
#pragma once

#include "convoy/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace convoy::ddp {

/// Whether writing into the tensors is seen by autograd, which then refuses to run the backward of
/// graphs that saved them.
enum class VersionCounters { kBump, kKeep };

/// Collective. The tensors have the same shapes, strides and dtypes on all ranks; any dtype, moved
/// as bytes. Returns when they hold rank 0's values.
void broadcast_from_rank_0(Communicator& comm, const std::vector<at::Tensor>& tensors,
                           const std::string& tag, VersionCounters versions);

}  // namespace convoy::ddp
