// Averages gradients over the ranks while backward runs, bucket by bucket in order.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/ddp/options.h"
#include "ddp/bucket.h"
#include "ddp/bucket_plan.h"
#include "ddp/end_of_backward.h"
#include "ddp/gradient_hooks.h"
#include "ddp/parameter.h"
#include "ddp/usage_report.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace convoy::ddp {

/// One backward, from the first hook that fires to the engine's end callback.
///
/// Note [Re-entrant backward]
/// A node may run a backward of its own (activation checkpointing): the parameters of its segment
/// then fire inside an inner graph task, a shared parameter once for each segment. The end callback
/// must belong to the outermost task, so the wrapper's outputs carry a hook that fires before any
/// parameter and begins the backward there. How often a parameter fires is learned in the first
/// backward: until then an inner task puts launching off to the end. Should a parameter fire after
/// its bucket was launched, the bucket is finished, the new gradient is added to the mean, and the
/// bucket is averaged again: mean(mean(a) + b) = mean(a) + mean(b), to rounding.
struct BackwardPass {
  enum class Begin { kAtOutput, kAtParameter };

  Begin begin = Begin::kAtParameter;
  int graph_task = -1;
  std::thread::id thread;
  bool synchronised = true;      ///< False under no_sync.
  bool launches_at_end = false;  ///< See Note [Re-entrant backward].
  std::int64_t forwards = 0;     ///< Training forwards since the last backward; part of tags.
  std::int64_t begin_ns = 0;
  std::int64_t last_gradient_ns = 0;   ///< When the newest gradient was ready.
  std::vector<int> arrivals;           ///< By parameter: how often it has fired.
  std::vector<std::size_t> order;      ///< Parameters in the order in which they became complete.
  std::size_t next_bucket = 0;         ///< Buckets before it have been launched.
  std::vector<at::Tensor> kept_aside;  ///< By parameter: its gradient, if this rank missed it.
};

/// Keeps the gradients of a module's replicas equal. Owns buckets and hooks.
/// Thread rule: forward, backward and everything else of one reducer run in one thread at a time.
class Reducer final : public GradientListener,
                      public BackwardListener,
                      public std::enable_shared_from_this<Reducer> {
 public:
  /// Collective: allocates the buckets. `parameters` are trainable, dense, of floating point dtype,
  /// each tensor once, and the same on all ranks. To be made by std::make_shared.
  Reducer(std::vector<Parameter> parameters, CommunicatorPtr comm,
          const DistributedDataParallelOptions& options);

  /// Throws kFailed if an earlier backward failed, or the communicator has.
  void require_usable() const;
  /// Throws kMisuse naming a parameter that changed its dtype, shape or requires_grad.
  void require_unchanged() const;
  /// A forward whose outputs can be trained on has ended.
  void count_forward() noexcept { ++forwards_; }
  /// Lets a backward that passes through `output` begin there.
  void watch(const at::Tensor& output);

  /// While at least one pause is held, backwards add to the local gradients and do not communicate.
  void pause() noexcept { ++pauses_; }
  void resume() noexcept { --pauses_; }
  bool is_paused() const noexcept { return pauses_ > 0; }

  /// Synchronised backwards that have ended well, since construction.
  std::int64_t synchronised_backwards() const noexcept { return synchronised_backwards_; }
  const DistributedDataParallelStats& stats() const noexcept { return stats_; }
  void reset_stats() { stats_ = {}; }
  /// Bytes of all buckets.
  std::int64_t bucket_bytes() const noexcept;

  void before_accumulate(std::size_t parameter) override;
  void after_accumulate(std::size_t parameter, bool defined) override;
  void on_backward_end() override;
  void on_backward_failed() noexcept override;

 private:
  /// What this rank knows of a parameter since the last synchronised backward.
  enum class Seen { kNothing, kUndefined, kGradient };
  enum class Phase { kIdle, kBackward, kFailed };
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  void enter(Phase to);
  void build_buckets(const Plan& plan);
  /// Collective. Puts the buckets into rank 0's order of arrival.
  void rebuild_buckets();
  const GradientSlot& slot_of(std::size_t parameter) const;

  void begin_backward(BackwardPass::Begin begin);
  /// Brings an arrived gradient to its bucket.
  void take(std::size_t parameter, at::Tensor& grad, const BackwardPass& pass);
  void launch_ready(BackwardPass& pass);
  void launch(Bucket& bucket, BackwardPass& pass);
  /// Writes the slot's usage, and its gradient if that did not arrive in this backward.
  void complete(const GradientSlot& slot, BackwardPass& pass);
  void finish_synchronised(BackwardPass& pass);
  /// Gives the parameter its mean gradient, or leaves it as it was if no rank used it.
  void settle(const GradientSlot& slot, const BackwardPass& pass,
              std::vector<MissedParameter>& missed);
  void record(const BackwardPass& pass) const;
  void fail(Error error) noexcept;

  const std::vector<Parameter> parameters_;
  const CommunicatorPtr comm_;
  const bool find_unused_;
  const BucketLimits limits_;

  std::vector<PlanParameter> plan_parameters_;
  std::vector<std::pair<at::ScalarType, at::Tensor>> flats_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  ///< By parameter.

  Phase phase_ = Phase::kIdle;
  std::optional<BackwardPass> pass_;
  std::optional<Error> failure_;
  int pauses_ = 0;
  std::int64_t forwards_ = 0;
  std::int64_t synchronised_backwards_ = 0;
  std::vector<Seen> seen_;                ///< By parameter.
  std::vector<int> expected_;             ///< By parameter: how often it fires in one backward.
  bool learned_ = false;                  ///< expected_ is from a whole backward.
  std::vector<std::size_t> ready_order_;  ///< Of the first synchronised backward, until rebuilt.
  bool rebuilt_ = false;
  DistributedDataParallelStats stats_;
  GradientHooks hooks_;  ///< Last: removed before what they use.
};

}  // namespace convoy::ddp
