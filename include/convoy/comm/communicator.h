// The collective operations of a group of ranks: checked, numbered and traced, over a backend.
#pragma once

#include "convoy/base/error.h"
#include "convoy/comm/own_values.h"
#include "convoy/comm/types.h"
#include "convoy/comm/work.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

/// A copy to make when an operation's result is there: `source` goes back into the caller's
/// `target`, which did not lie in memory in order.
struct WriteBack {
  at::Tensor target;
  at::Tensor source;
};

/// What the public operations hand to a backend: the identity of an operation whose arguments were
/// checked. The tensors that come with it are contiguous.
struct OpContext {
  OpKind kind = OpKind::kBarrier;
  std::uint64_t sequence =
      0;  ///< Counts operations of this communicator from 1; equal on all ranks.
  std::string tag;
  Deadline deadline;
  std::vector<WriteBack> write_backs;  ///< To be done, in order, before the operation is complete.
  OwnValues own;                       ///< Reductions; inside of the range that own_part() gave.
};

/// A group of ranks that can talk. Every rank must call the same operations in the same order; the
/// communicator checks it and fails on all ranks with one text when they do not. Operations start
/// in call order and may complete in any order. A failed communicator stays failed: every later
/// call throws kFailed quoting the first cause. Two calls that are the same in kind, type, count
/// and tag cannot be told apart: give tags where ranks could meet in the wrong call. Thread rule:
/// calls are serialised by a lock; the order of calls is the caller's business. Tensors: dense CPU
/// tensors; non-contiguous ones work and are written back in place. Broadcast and all_gather move
/// any type as bytes; reductions take Double, Float, BFloat16, Half, Long, Int, Byte and Bool
/// (docs/numerics.md).
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  /// Ends the group: waits shortly for the peers to finish what is in flight, never throws.
  virtual ~Communicator() = default;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const CommunicatorOptions& options() const noexcept { return options_; }
  trace::Sink* trace_sink() const noexcept { return options_.trace.get(); }

  /// Combines `tensor` over the ranks, in place. Same shape and dtype everywhere.
  /// With `own`, values of this rank inside of own_part() are read from there.
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, OpOptions options = {},
                     OwnValues own = {});
  /// `input` has size() x output.numel() elements; rank r gets the combined r-th part in `output`.
  /// `output` may be a view of `input`'s own r-th part. `own` as in all_reduce.
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::kSum,
                         OpOptions options = {}, OwnValues own = {});
  /// The elements of `tensor` whose values no other rank reads when it is passed to `kind`
  /// (all_reduce, reduce_scatter): this rank combines them. They need not be copied there, see
  /// OwnValues. Empty where the backend does not work that way, and for tensors that it stages.
  ElementRange own_part(OpKind kind, const at::Tensor& tensor);
  /// `output` has size() x input.numel() elements and gets the inputs in rank order. `input` may be
  /// a view of `output`'s own r-th part.
  WorkPtr all_gather(at::Tensor output, at::Tensor input, OpOptions options = {});
  /// As all_gather with one output tensor a rank, whose sizes may differ (outputs[r] has the size
  /// of rank r's input; all ranks pass the same sizes).
  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input, OpOptions options = {});
  WorkPtr broadcast(at::Tensor tensor, int root, OpOptions options = {});
  /// Done when every rank has entered it.
  WorkPtr barrier(OpOptions options = {});

  /// A zeroed contiguous tensor that the backend can move without staging (shared memory on a
  /// host). Collective: same order, numel, dtype and tag on all ranks. Freed when its last owner is
  /// gone and the communicator has ended, or at once when `shares_memory()` is false.
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype, OpOptions options = {});
  /// True if allocate_shared works: all ranks of the group map the same memory.
  virtual bool shares_memory() const noexcept = 0;
  /// One zeroed region that is the same memory on all ranks: a store by one rank is seen by the
  /// others. Collective as allocate. Ordering writes and reads is the caller's business (barrier).
  /// Error: kInvalidArgument where shares_memory() is false.
  at::Tensor allocate_shared(std::int64_t numel, at::ScalarType dtype, OpOptions options = {});

  /// The most bytes that one reduction should take, where less is faster: absent if calls are dear
  /// and the more bytes the better.
  virtual std::optional<std::int64_t> preferred_bytes() const noexcept { return std::nullopt; }

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
  virtual at::Tensor do_allocate(const OpContext& context, std::int64_t numel, at::ScalarType dtype,
                                 bool shared) = 0;
  virtual ElementRange do_own_part(OpKind /*kind*/, const at::Tensor& /*tensor*/) const {
    return {};
  }

  OpContext next_context(OpKind kind, OpOptions options, std::vector<WriteBack> write_backs = {},
                         OwnValues own = {});
  void require_own(OpKind kind, const std::string& tag, const at::Tensor& tensor,
                   const OwnValues& own);
  WorkPtr gather_into(std::vector<at::Tensor> outputs, at::Tensor input, OpOptions options,
                      std::vector<WriteBack> write_backs);
  at::Tensor allocate_checked(std::int64_t numel, at::ScalarType dtype, OpOptions options,
                              bool shared);

  int rank_;
  int size_;
  CommunicatorOptions options_;
  std::mutex mutex_;  ///< Held from taking a number to handing the operation to the backend.
  std::uint64_t sequence_ = 0;
};

using CommunicatorPtr = std::shared_ptr<Communicator>;

}  // namespace convoy
