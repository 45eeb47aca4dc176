// The total norm of gradients that lie on several ranks.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"

#include <span>

namespace convoy::optim {

/// The p-norm over all gradients of `spans`, as clip_grad_norm_ defines it. Collective if `comm` is
/// not null; `tag` names the operation and is compared between ranks.
double gradient_norm(std::span<const ShardSpan> spans, Communicator* comm, double p,
                     const std::string& tag);

}  // namespace convoy::optim
