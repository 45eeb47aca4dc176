// FullyShardedDataParallel: parameters, gradients and optimizer state cut over the ranks, per unit.
#pragma once

#include "convoy/base/check.h"
#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"
#include "convoy/fsdp/full_params.h"
#include "convoy/fsdp/options.h"
#include "convoy/fsdp/unit.h"
#include "convoy/fsdp/unit_summary.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace convoy::fsdp {

class ShardedModel;

/// While it lives, backwards keep full-size gradients of this rank's own and reduce nothing.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<ShardedModel> model);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<ShardedModel> model_;
  bool before_;
};

/// While it lives, every rank may write its own shards (see edit()).
class [[nodiscard]] EditScope {
 public:
  explicit EditScope(std::shared_ptr<ShardedModel> model);
  EditScope(EditScope&&) noexcept = default;
  EditScope& operator=(EditScope&&) = delete;
  EditScope(const EditScope&) = delete;
  EditScope& operator=(const EditScope&) = delete;

 private:
  std::shared_ptr<ShardedModel> model_;
};

/// The wrapper without its template.
class FullySharded {
 public:
  FullySharded(std::shared_ptr<torch::nn::Module> module, CommunicatorPtr comm,
               const Options& options);
  ~FullySharded();
  FullySharded(const FullySharded&) = delete;
  FullySharded& operator=(const FullySharded&) = delete;

  const CommunicatorPtr& communicator() const noexcept;

  /// Accumulation without communication: while the guard lives, a backward (wherever its forward
  /// was) adds to full-size gradients of this rank's own, which cost as much memory as the model.
  /// The next synchronised backward reduces their sum; it is not divided by the number of
  /// backwards. Until then the leaves carry placeholders as gradients: stepping on one is torch's
  /// own shape error, and zero_grad in any form drops what has been accumulated. Accumulating
  /// without no_sync works too: it needs no memory and reduces every time.
  NoSync no_sync();

  /// A scope in which every rank may write its own shards (an exponential moving average swapped in
  /// for an evaluation, clamping, loading): parameters may otherwise change only between a
  /// synchronised backward and the next forward, which is where optimizers step. Collective: waits
  /// until no rank reads any more. Writes after the scope and before the next forward are fine.
  EditScope edit();

  /// Waits until every rank has stepped and ends the time in which shards may be written, as the
  /// next forward would. Collective. After it a single rank may run forwards on its own, without
  /// gradients or in evaluation mode, if the gathers are shared.
  void settle();

  /// Makes units full until reshard() or the end of a backward: for several forwards in a row that
  /// should not gather each time (private gathers), or to read parameters as forward sees them.
  /// `units` is a pattern as in wrap_units_named; "(root)" is the root, "**" all. Collective. What
  /// is written to a full parameter is an error with shared gathers and lost with private ones: see
  /// summon_full_params and edit(). Errors: kInvalidArgument for a name that matches no unit;
  /// kMisuse inside a forward or backward.
  void unshard(const std::string& units = "**");
  /// Gives them up again; nothing for units that are not full.
  void reshard(const std::string& units = "**");
  /// Options::reshard_after_forward from the next forward on; the same on every rank. The root
  /// keeps its parameters until backward whatever is said here.
  void set_reshard_after_forward(bool reshards, const std::string& units = "**");

  /// What this rank holds of every parameter, in order of registration, each tensor once.
  std::vector<ShardSpan> shard_spans() const;

  /// True if gathers are shared (Options::shared_gather, where all ranks share memory).
  bool gathers_shared() const noexcept;
  std::vector<UnitSummary> units() const;
  /// The units as a table for people: parameters, bytes a rank, padding, and how they are cut.
  std::string describe() const;
  /// Bytes of the gradient buffers that units take turns with.
  std::int64_t gradient_buffer_bytes() const noexcept;
  /// Bytes of parameters in Options::mixed_precision's lower dtype that this rank holds all the
  /// time, beside its float32 shards: 0 without mixed precision.
  std::int64_t cast_parameter_bytes() const noexcept;
  /// Bytes of full-size gradients outside of the gradient buffers, now: those kept under no_sync,
  /// and, in a backward with shared gathers, those that are read where autograd has put them.
  std::int64_t local_gradient_bytes() const noexcept;

  /// The module as it was given.
  torch::nn::Module& root() const noexcept { return *module_; }
  const std::shared_ptr<ShardedModel>& sharded() const noexcept { return model_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<ShardedModel> model_;
};

}  // namespace convoy::fsdp

namespace convoy {

/// Shards a model made of units (see Unit): `Holder` is a module holder or a std::shared_ptr to a
/// module, itself a Unit unless all its parameters lie in inner units.
///
///     using Block = convoy::Unit<BlockImpl>;
///     using GPT = convoy::Unit<GPTImpl>;
///     GPT model(config);
///     convoy::FullyShardedDataParallel fsdp(model, comm, {.wrap =
///     convoy::wrap_units_of<Block>()}); torch::optim::AdamW adam(model->parameters(), 3e-4); auto
///     loss = lossfn(fsdp(x), y); loss.backward(); adam.step();
///
/// - Parameters keep their names and stay the same tensors. Outside of forward and backward each is
///   this rank's slice of it, `[rows here, ...]`, maybe empty, and so is its gradient, the mean
///   over the ranks. Any torch::optim optimizer works, made before or after wrapping, that steps
///   each element on its own; torch's clip_grad_norm_ and LBFGS see this rank's part only (use
///   convoy::clip_grad_norm_).
/// - Same bits as one process that adds the ranks' gradients in order, shared or private gathers.
/// - `fsdp(x)` and `model->forward(x)` are the same.
/// - Every rank runs the same synchronised backwards, each after as many training forwards as the
///   others (those under no_sync do not count).
/// - A rank may not use a unit in some step; gradients are defined on all ranks if any used the
///   parameter. With private gathers all ranks must run the same units in the same order.
/// - The optimizer steps after a synchronised backward and before any other forward; for writes at
///   other times see edit(). A write at another time is an error on all ranks.
/// - A backward that throws on one rank of several fails the communicator on all. What was
///   accumulated under no_sync is dropped then.
/// - A model stays sharded for its life. Everything stays usable in any order of destruction.
///
/// Thread rule: one thread at a time; concurrent backwards are refused.
template <class Holder>
class FullyShardedDataParallel : public fsdp::FullySharded {
 public:
  /// Collective. Compares the models of all ranks, then gives all rank 0's parameters and buffers.
  /// Errors: kInvalidArgument naming the parameter, unit or rule at fault; kMismatch with one text
  /// on all ranks naming the first parameter, buffer or option that differs; kMemory.
  FullyShardedDataParallel(Holder model, CommunicatorPtr comm, fsdp::Options options = {})
      : FullySharded(pointer_of(model), std::move(comm), options), holder_(std::move(model)) {}

  /// The model's forward.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    return holder_->forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// The model as it was given.
  Holder& module() noexcept { return holder_; }
  const Holder& module() const noexcept { return holder_; }

 private:
  static std::shared_ptr<torch::nn::Module> pointer_of(const Holder& model) {
    if constexpr (requires { model.ptr(); }) {
      CONVOY_REQUIRE(!model.is_empty(), kInvalidArgument, "FSDP: the module holder is empty");
      return model.ptr();
    } else {
      CONVOY_REQUIRE(model != nullptr, kInvalidArgument, "FSDP: the module is null");
      return model;
    }
  }

  Holder holder_;
};

}  // namespace convoy
