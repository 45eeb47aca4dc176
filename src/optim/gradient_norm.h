// The total norm of gradients that lie on several ranks.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace convoy::optim {

/// The p-norm over all gradients of `spans`, as clip_grad_norm_ defines it. Collective if `comm` is
/// not null. Errors start with the name of the function that calls; name and arguments together are
/// compared between ranks.
double gradient_norm(std::span<const ShardSpan> spans, Communicator* comm, double p,
                     const char* caller, const std::string& arguments);

/// The parameters of one process; a tensor listed twice counts once.
std::vector<ShardSpan> spans_of_process(const std::vector<at::Tensor>& parameters,
                                        const char* caller);

}  // namespace convoy::optim
