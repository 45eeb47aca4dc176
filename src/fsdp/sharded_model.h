// A sharded model without its modules: the units, and what forward and backward do to them.
#pragma once

#include "backward_pass.h"
#include "convoy/fsdp/full_params.h"
#include "convoy/fsdp/options.h"
#include "forward_runs.h"
#include "full_values.h"
#include "gatherer.h"
#include "param_group.h"
#include "precision_plan.h"

#include <torch/nn/module.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace convoy::fsdp {

/// Shared by the wrapper, the units of the model and the nodes of every graph the model has built,
/// so that a backward works even when model and wrapper are gone. It holds no modules.
/// Thread rule: one thread at a time; a backward in one thread refuses others by name.
class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
  struct Private {};

 public:
  /// Plans the units of `model`, compares the plan over the ranks, moves the parameters into their
  /// buffers with rank 0's values, broadcasts the buffers, and makes the units use the result.
  /// Collective. Errors: kInvalidArgument (plan_units), kMismatch with one text on all ranks.
  static std::shared_ptr<ShardedModel> create(torch::nn::Module& model, CommunicatorPtr comm,
                                              const Options& options);

  /// For create().
  ShardedModel(Private, CommunicatorPtr comm, UnitPlan plan, const PrecisionPlan& precision,
               const Options& options);

  Communicator& comm() const noexcept { return *comm_; }
  const CommunicatorPtr& comm_ptr() const noexcept { return comm_; }
  const std::vector<ParamGroup>& groups() const noexcept { return groups_; }
  const std::vector<PlannedName>& names() const noexcept { return names_; }
  /// See Options::ignored.
  const std::vector<PlannedParameter>& ignored() const noexcept { return ignored_; }
  const GatherOptions& options() const noexcept { return gatherer_->options(); }
  std::int64_t grad_buffer_bytes() const noexcept { return pool_->bytes(); }

  /// Forward, called by units.
  ForwardRun begin_forward(std::size_t unit, std::size_t module, bool trains);
  void finish_forward(const ForwardRun& run, const std::vector<at::Tensor>& outputs);
  void abandon_forward(const ForwardRun& run) noexcept;

  /// Meets all ranks under the name of a call that all must make, so that one that is somewhere
  /// else is an error that names both.
  void announce(const char* call);
  /// Reads the full parameters of one unit and its frozen part (`group` is either): calls `read`
  /// with their leaves full. Collective with private gathers.
  void with_full(std::size_t group, const std::function<void()>& read);
  /// Overwrites all parameters of a unit with rank 0's `values` (others pass anything). Collective;
  /// inside an edit.
  void replace_values(std::size_t unit, const at::Tensor& values);

  /// Whether a backward reduces gradients (true) or keeps them (no_sync). Decided when it begins.
  bool synchronises() const noexcept { return synchronises_; }
  void set_synchronises(bool value) noexcept { synchronises_ = value; }

  void settle();
  void begin_edit();
  /// By names of units; see FullySharded.
  void unshard(const std::string& pattern);
  void reshard(const std::string& pattern);
  void set_reshards(const std::string& pattern, bool reshards);
  /// See FullParamsScope.
  void summon(const SummonOptions& options);
  void end_summon();
  void abandon_summon() noexcept;
  /// The wrapper is going; this rank will not train on, but peers may still read.
  void close() noexcept;

 private:
  class Behaviour;
  class Scope;
  class EndOfBackward;

  void attach_storage(const UnitPlan& plan, const PrecisionPlan& precision);
  void take_accumulators(std::size_t unit);
  BackwardPass& join_backward();
  bool on_gradient(std::size_t unit, std::size_t leaf, const at::Tensor& gradient);
  void finish_backward();
  /// A span of category "compute", of one unit or of the whole model.
  void trace_compute(const char* name, std::optional<std::size_t> unit, std::int64_t begin_ns,
                     std::int64_t end_ns) const;
  void abandon_backward() noexcept;
  void require_idle(const char* operation) const;
  /// As require_idle, for what comes between steps, which finds no gather on its way: one that a
  /// forward had begun ahead before it threw is dropped. Error also: kFailed where the communicator
  /// has failed.
  void begin_between(const char* operation);
  void require_no_scope(const std::string& operation) const;
  void require_sharded(const char* operation) const;
  std::vector<std::size_t> units_named(const std::string& pattern, bool recurse) const;

  CommunicatorPtr comm_;
  std::vector<ParamGroup> groups_;
  std::vector<PlannedName> names_;
  std::vector<PlannedParameter> ignored_;
  std::shared_ptr<GradBufferPool> pool_;
  std::optional<Gatherer> gatherer_;
  AccumulatorMap accumulators_;
  std::optional<ForwardRuns> runs_;
  std::vector<std::size_t> order_;  ///< Of reductions; see Note [One order of collectives].
  bool order_is_learnt_ = false;
  at::Tensor flags_;
  bool synchronises_ = true;
  std::int64_t forwards_ = 0;  ///< See Note [Steps that pair].
  std::atomic<std::thread::id> backward_thread_{};
  std::uint64_t backwards_ = 0;
  std::optional<BackwardPass> backward_;
  struct Summoning {
    bool writeback = false;
    bool rank0_only = false;
  } summon_;
  std::unique_ptr<FullValues> summoned_;  ///< While a summon_full_params scope is open.
};

}  // namespace convoy::fsdp
