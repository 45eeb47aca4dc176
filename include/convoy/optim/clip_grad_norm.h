// Clips gradients by their total norm, which has the same bits in every strategy and world size.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"
#include "convoy/optim/model_concepts.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace convoy::optim {

/// Scales the gradients of all parameters by max_norm / (norm + 1e-6) if that is below 1, where
/// norm is the p-norm over every element of every gradient, and returns the norm before scaling.
///
/// The norm is defined so that it does not depend on who holds what: |x|^p is summed in float64
/// over fixed blocks of kShardAlignment elements of each parameter, in a fixed order; the block
/// sums are added exactly (ExactSum), over the ranks too; the total is rounded once. So one
/// process, DDP and FSDP at any world size get equal bits, and equal gradients after scaling (done
/// in float32, in float64 for float64). Parameters that FSDP ignores are no spans of the model and
/// are not clipped.
///
/// Collective: every rank of `comm` calls it, with the same p and max_norm, also one whose spans
/// are empty or have no gradients. The blocks of replicated spans are shared out over the ranks.
/// Without `comm` (null) the spans are all there is.
///
/// p > 0; infinity takes the largest magnitude. Gradients: dense CPU tensors of floating dtype, of
/// the leaf's shape, any layout; undefined ones count as absent. A norm that is not finite is
/// returned so, and the gradients are scaled by what the formula gives (0 or nan), as in PyTorch;
/// with `error_if_nonfinite` kInvalidArgument is thrown on all ranks instead.
///
/// Errors, after which no rank has scaled anything: kInvalidArgument (p, max_norm, a sparse or
/// ill-shaped gradient; the other ranks then get kMismatch); kMismatch on all ranks when a
/// replicated parameter has a gradient on some ranks only, or the arguments differ; those of the
/// communicator.
double clip_grad_norm_(std::span<const ShardSpan> spans, Communicator* comm, double max_norm,
                       double p = 2.0, bool error_if_nonfinite = false);

/// The parameters of one process; a tensor listed twice counts once.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double p = 2.0,
                       bool error_if_nonfinite = false);

/// A DistributedDataParallel or FullyShardedDataParallel model, or a module or module holder that
/// is not wrapped.
template <detail::AnyModel Model>
double clip_grad_norm_(const Model& model, double max_norm, double p = 2.0,
                       bool error_if_nonfinite = false) {
  if constexpr (detail::WrappedModel<Model>) {
    const auto& spans = model.shard_spans();
    return clip_grad_norm_(std::span<const ShardSpan>(spans),
                           detail::address_of(model.communicator()), max_norm, p,
                           error_if_nonfinite);
  } else if constexpr (detail::PlainModel<Model>) {
    return clip_grad_norm_(model.parameters(), max_norm, p, error_if_nonfinite);
  } else {
    return clip_grad_norm_(model->parameters(), max_norm, p, error_if_nonfinite);
  }
}

}  // namespace convoy::optim

namespace convoy {
using optim::clip_grad_norm_;
}  // namespace convoy
