// One rank's copy of a module, kept equal to the other ranks' copies.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/ddp/options.h"
#include "convoy/flat/shard_span.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace convoy::ddp {

class Reducer;

/// A parameter or buffer under its original name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Compares and equalises the ranks' modules when made, equalises buffers before forwards, and lets
/// its reducer average the gradients in backward.
/// Thread rule: one thread at a time, forward and backward included.
class Replica {
 public:
  /// Collective. Errors, the same on every rank: kMismatch naming the first parameter, buffer or
  /// option that differs; kInvalidArgument (no trainable parameter, or one that cannot be reduced).
  Replica(std::shared_ptr<torch::nn::Module> module, CommunicatorPtr comm,
          const DistributedDataParallelOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// To be called before each forward. Collective for a module in training mode whose last backward
  /// was synchronised, if it has buffers. Errors: kFailed after a failure; kMisuse naming a
  /// parameter that was changed after wrapping.
  void before_forward();
  /// To be called after each forward that did not throw.
  void after_forward();
  /// To be called with each tensor that forward returned.
  void watch_output(const at::Tensor& output);

  void pause();
  void resume() noexcept;

  const CommunicatorPtr& communicator() const noexcept { return comm_; }
  const torch::nn::Module& module() const noexcept { return *module_; }
  std::vector<ShardSpan> shard_spans() const;
  /// Each tensor once, under the first of its names, in order of registration.
  const std::vector<NamedTensor>& parameters() const noexcept { return parameters_; }
  const std::vector<NamedTensor>& buffers() const noexcept { return buffers_; }
  std::int64_t bucket_bytes() const;
  DistributedDataParallelStats stats() const;
  void reset_stats();

 private:
  void require_frozen_unchanged() const;

  std::shared_ptr<torch::nn::Module> module_;
  CommunicatorPtr comm_;
  bool broadcast_buffers_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  std::vector<NamedTensor> frozen_;
  std::shared_ptr<Reducer> reducer_;
  std::int64_t buffers_follow_ = 0;  ///< The synchronised backward after which they were equalised.
};

/// While it lives, backwards add to this rank's gradients and do not communicate. Movable.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<Replica> replica) : replica_(std::move(replica)) {
    replica_->pause();
  }
  ~NoSync() {
    if (replica_) replica_->resume();
  }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<Replica> replica_;
};

}  // namespace convoy::ddp
