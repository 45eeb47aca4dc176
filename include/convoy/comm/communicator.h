// The collective operations of a group of ranks: checked, numbered and traced, over a backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "convoy/base/error.h"
#include "convoy/comm/types.h"
#include "convoy/comm/work.h"

namespace convoy {

/// What the public operations hand to a backend: checked arguments and the operation's identity.
struct OpContext {
  OpKind kind;
  std::uint64_t sequence;  ///< Counts operations of this communicator from 1; equal on all ranks.
  std::string tag;
  Deadline deadline;
};

/// A group of ranks that can talk. Every rank must call the same operations in the same order; the
/// communicator checks it and fails on all ranks with one text when they do not. Operations start in
/// call order and may complete in any order. A failed communicator stays failed: every later call
/// throws kFailed quoting the first cause.
/// Thread rule: calls are serialised by a lock; the order of calls is the caller's business.
/// Tensors: dense CPU tensors; non-contiguous ones work and are written back in place.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  /// Ends the group: waits shortly for the peers to finish what is in flight, never throws.
  virtual ~Communicator() = default;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const CommunicatorOptions& options() const noexcept { return options_; }
  trace::Sink* trace_sink() const noexcept { return options_.trace.get(); }

  /// Combines `tensor` over the ranks, in place. Same shape and dtype everywhere.
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, OpOptions options = {});
  /// `input` has size() x output.numel() elements; rank r gets the combined r-th part in `output`.
  /// `output` may be a view of `input`'s own r-th part.
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::kSum,
                         OpOptions options = {});
  /// `output` has size() x input.numel() elements and gets the inputs in rank order. `input` may be
  /// a view of `output`'s own r-th part.
  WorkPtr all_gather(at::Tensor output, at::Tensor input, OpOptions options = {});
  /// As all_gather with one output tensor a rank, whose sizes may differ (outputs[r] has the size of
  /// rank r's input; all ranks pass the same sizes).
  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input, OpOptions options = {});
  WorkPtr broadcast(at::Tensor tensor, int root, OpOptions options = {});
  /// Done when every rank has entered it.
  WorkPtr barrier(OpOptions options = {});

  /// A zeroed contiguous tensor that the backend can move without staging (shared memory on a host).
  /// Collective: same order, numel, dtype and tag on all ranks. Freed when its last owner is gone and
  /// the communicator has ended, or at once when `shares_memory()` is false.
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype, OpOptions options = {});
  /// True if allocate_shared works: all ranks of the group map the same memory.
  virtual bool shares_memory() const noexcept = 0;
  /// One zeroed region that is the same memory on all ranks: a store by one rank is seen by the
  /// others. Collective as allocate. Ordering writes and reads is the caller's business (barrier).
  /// Error: kInvalidArgument where shares_memory() is false.
  at::Tensor allocate_shared(std::int64_t numel, at::ScalarType dtype, OpOptions options = {});

  /// Lets operations in flight advance, without waiting. Cheap when there are none.
  virtual void poll() = 0;
  /// Fails the group on all ranks with `error`, unless it has failed already.
  virtual void abort(const Error& error) noexcept = 0;
  /// The first failure of the group, if it has failed.
  virtual std::optional<Error> failure() const = 0;
  /// Counters since construction or the last reset, by kind of operation.
  virtual CommStats stats() const = 0;
  virtual void reset_stats() = 0;

 protected:
  Communicator(int rank, int size, CommunicatorOptions options);

 private:
  virtual WorkPtr do_all_reduce(const OpContext& context, at::Tensor tensor, ReduceOp op) = 0;
  virtual WorkPtr do_reduce_scatter(const OpContext& context, at::Tensor output, at::Tensor input,
                                    ReduceOp op) = 0;
  virtual WorkPtr do_all_gather(const OpContext& context, std::vector<at::Tensor> outputs,
                                at::Tensor input) = 0;
  virtual WorkPtr do_broadcast(const OpContext& context, at::Tensor tensor, int root) = 0;
  virtual WorkPtr do_barrier(const OpContext& context) = 0;
  virtual at::Tensor do_allocate(const OpContext& context, std::int64_t numel,
                                 at::ScalarType dtype, bool shared) = 0;

  int rank_;
  int size_;
  CommunicatorOptions options_;
  std::mutex mutex_;
  std::uint64_t sequence_ = 0;
};

using CommunicatorPtr = std::shared_ptr<Communicator>;

}  // namespace convoy
