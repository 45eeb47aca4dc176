// DistributedDataParallel: trains equal copies of a module on all ranks, each on its own data.
#pragma once

#include "convoy/base/check.h"
#include "convoy/ddp/options.h"
#include "convoy/ddp/outputs.h"
#include "convoy/ddp/replica.h"

#include <memory>
#include <utility>
#include <vector>

namespace convoy {

/// Wraps any torch::nn module: `Holder` is a module holder (TORCH_MODULE) or a std::shared_ptr to a
/// module. After each backward every rank's gradients are the mean over the ranks, added in rank
/// order and divided once, whatever the bucket size; buckets are averaged while backward still
/// runs.
///
///     convoy::DistributedDataParallel ddp(model, comm);
///     auto loss = lossfn(ddp(x), y);
///     loss.backward();
///     optimizer.step();
///
/// - Parameters keep their names and stay the same tensors, so an optimizer may be made before or
///   after wrapping. Tied parameters count once. Which parameters train, and their dtypes, must not
///   change any more.
/// - Gradients are views of the buckets; zero_grad in all its forms works, and so does a gradient
///   that the user assigns. A tensor kept from `.grad()` changes with the next backward.
/// - Every rank must run the same synchronised backwards, each after as many training forwards as
///   the others (those under no_sync do not count). Repeated backwards without zeroing add the mean
///   of each. autograd::grad gives this rank's own gradients; create_graph is an error.
/// - A backward that throws on one rank of several fails the wrapper and its communicator on all.
/// - The arena memory of the buckets is given back when the communicator ends.
///
/// Thread rule: one thread at a time, forward and backward included. Wrappers that share a
/// communicator must be used in the same order on all ranks.
template <class Holder>
class DistributedDataParallel {
 public:
  /// Collective. Compares the models of all ranks, then copies rank 0's parameters and buffers to
  /// the others. Errors, the same on every rank: kMismatch naming the first parameter, buffer or
  /// option that differs; kInvalidArgument (no trainable parameter, or one that cannot be
  /// averaged).
  DistributedDataParallel(Holder module, CommunicatorPtr comm,
                          DistributedDataParallelOptions options = {})
      : module_(std::move(module)),
        replica_(std::make_shared<ddp::Replica>(pointer_of(module_), std::move(comm), options)) {}

  /// Runs the module's forward. Errors: kFailed after a failed backward, quoting its cause; kMisuse
  /// naming a parameter that was changed after wrapping.
  template <class... Arguments>
  auto forward(Arguments&&... arguments)
      -> decltype(std::declval<Holder&>()->forward(std::forward<Arguments>(arguments)...)) {
    using Output = decltype(module_->forward(std::forward<Arguments>(arguments)...));
    replica_->before_forward();
    Output output = module_->forward(std::forward<Arguments>(arguments)...);
    replica_->after_forward();
    detail::for_each_tensor(output,
                            [this](const at::Tensor& tensor) { replica_->watch_output(tensor); });
    return std::forward<Output>(output);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// The module as it was given.
  Holder& module() noexcept { return module_; }
  const Holder& module() const noexcept { return module_; }
  const CommunicatorPtr& communicator() const noexcept { return replica_->communicator(); }

  /// While the returned guard lives, backwards only add to this rank's gradients: what counts is
  /// where backward runs, not forward. The next synchronised backward averages the ranks' sums;
  /// they are not divided by the number of backwards.
  ddp::NoSync no_sync() { return ddp::NoSync(replica_); }

  /// All parameters, frozen ones too, each tensor once, in order of registration.
  std::vector<ShardSpan> shard_spans() const { return replica_->shard_spans(); }
  /// Bytes of the gradient buckets.
  std::int64_t bucket_bytes() const { return replica_->bucket_bytes(); }
  DistributedDataParallelStats stats() const { return replica_->stats(); }
  void reset_stats() { replica_->reset_stats(); }
  ddp::Replica& replica() noexcept { return *replica_; }
  const ddp::Replica& replica() const noexcept { return *replica_; }

 private:
  static auto pointer_of(const Holder& module) {
    if constexpr (requires { module.ptr(); }) {
      CONVOY_REQUIRE(!module.is_empty(), kInvalidArgument,
                     "DistributedDataParallel: the module holder is empty");
      return module.ptr();
    } else {
      CONVOY_REQUIRE(module != nullptr, kInvalidArgument,
                     "DistributedDataParallel: the module is null");
      return module;
    }
  }

  Holder module_;
  std::shared_ptr<ddp::Replica> replica_;
};

}  // namespace convoy
