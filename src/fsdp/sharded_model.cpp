// Wires units, gathers and backwards together and carries them through forward and backward.
#include "sharded_model.h"

#include "convoy/base/check.h"
#include "model_compare.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace convoy::fsdp {

/// A unit's link to the model; see unit_behaviour.h.
class ShardedModel::Behaviour final : public UnitBehaviour {
 public:
  Behaviour(std::shared_ptr<ShardedModel> model, std::size_t unit, std::size_t module)
      : model_(std::move(model)), unit_(unit), module_(module) {}

  ForwardCasts casts() const noexcept override { return model_->groups()[unit_].casts(); }
  std::unique_ptr<ForwardScope> enter_forward(bool trains) override;
  [[noreturn]] void refuse(const std::string& operation) const override;
  std::vector<std::int64_t> full_sizes(const at::Tensor& parameter) const override;

 private:
  std::shared_ptr<ShardedModel> model_;
  std::size_t unit_;
  std::size_t module_;  ///< Of those that share the unit.
};

class ShardedModel::Scope final : public ForwardScope {
 public:
  Scope(std::shared_ptr<ShardedModel> model, ForwardRun run)
      : model_(std::move(model)), run_(std::move(run)) {}
  ~Scope() override {
    if (!finished_) model_->abandon_forward(run_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void finish(const std::vector<at::Tensor>& outputs) override {
    model_->finish_forward(run_, outputs);
    finished_ = true;
  }

 private:
  std::shared_ptr<ShardedModel> model_;
  ForwardRun run_;
  bool finished_ = false;
};

/// Lives in the callback that autograd runs at the end of a backward. When backward throws,
/// autograd destroys its callbacks without running them, before the caller sees the exception; that
/// is how a failure is noticed.
class ShardedModel::EndOfBackward {
 public:
  explicit EndOfBackward(std::shared_ptr<ShardedModel> model) : model_(std::move(model)) {}
  ~EndOfBackward() {
    if (model_) model_->abandon_backward();
  }
  EndOfBackward(const EndOfBackward&) = delete;
  EndOfBackward& operator=(const EndOfBackward&) = delete;

  void run() { std::exchange(model_, nullptr)->finish_backward(); }

 private:
  std::shared_ptr<ShardedModel> model_;
};

std::unique_ptr<ForwardScope> ShardedModel::Behaviour::enter_forward(bool trains) {
  return std::make_unique<Scope>(model_, model_->begin_forward(unit_, module_, trains));
}

void ShardedModel::Behaviour::refuse(const std::string& operation) const {
  throw Error(ErrorKind::kMisuse,
              concat("FSDP: ", operation, " of unit ", model_->groups()[unit_].name(),
                     " would see this rank's shard only. Convert a model before wrapping it; use "
                     "full_state_dict and load_full_state_dict to save, load and copy"));
}

std::vector<std::int64_t> ShardedModel::Behaviour::full_sizes(const at::Tensor& parameter) const {
  // A tied parameter may lie in another unit; an ignored one lies in none and is whole.
  for (const ParamGroup& group : model_->groups()) {
    for (const auto& leaf : group.param().leaves()) {
      if (leaf.tensor.is_same(parameter)) return leaf.full_sizes;
    }
  }
  return parameter.sizes().vec();
}

ShardedModel::ShardedModel(Private, CommunicatorPtr comm, UnitPlan plan,
                           const PrecisionPlan& precision, const Options& options)
    : comm_(std::move(comm)), names_(std::move(plan.names)), ignored_(std::move(plan.ignored)) {
  std::vector<bool> reshards;
  groups_.reserve(plan.units.size());
  for (const PlannedUnit& unit : plan.units) {
    if (unit.part_of >= 0) {
      groups_[static_cast<std::size_t>(unit.part_of)].set_frozen_part(groups_.size());
    }
    groups_.emplace_back(unit, comm_->rank(), comm_->size());
    reshards.push_back(!unit.is_root && options.reshard_after_forward(unit.key()));
  }
  const bool shared = options.shared_gather && comm_->shares_memory();
  gatherer_.emplace(groups_, *comm_, GatherOptions{shared, std::move(reshards)});
  runs_.emplace(groups_, *gatherer_, accumulators_);
  attach_storage(plan, precision);
  // Backward reaches units in the reverse of forward's order, and the root last.
  for (std::size_t u = groups_.size(); u-- > 0;) order_.push_back(u);
}

// Everything that can fail for want of memory comes before the first leaf is touched.
void ShardedModel::attach_storage(const UnitPlan& plan, const PrecisionPlan& precision) {
  std::int64_t flag_count = 1;
  std::vector<std::int64_t> numels;
  std::vector<bool> fills_long(groups_.size());
  std::vector<std::unique_ptr<UnitStorage>> storages;
  for (std::size_t u = 0; u < groups_.size(); ++u) {
    const ParamGroup& group = groups_[u];
    const StoragePlan storage{group.param().layout(), plan.dtype, precision.units[u], group.name()};
    storages.push_back(gatherer_->options().shared ? make_shared_storage(*comm_, storage)
                                                   : make_private_storage(*comm_, storage));
    flag_count += 1 + static_cast<std::int64_t>(group.param().leaves().size());
    numels.push_back(group.trainable() ? group.param().layout().total_numel() : 0);
    if (group.parent() >= 0) fills_long[static_cast<std::size_t>(group.parent())] = true;
  }
  const bool shared = gatherer_->options().shared;
  pool_ = std::make_shared<GradBufferPool>(
      *comm_, plan_grad_buffers(numels, fills_long, grad_buffer_turns(shared)),
      precision.reduce_dtype, leaves_own_gradients(shared));
  flags_ = comm_->allocate(flag_count, at::kLong, {.tag = "FSDP: end of backward"});
  for (std::size_t u = 0; u < groups_.size(); ++u) {
    groups_[u].attach(std::move(storages[u]), precision.units[u], pool_);
  }
}

std::shared_ptr<ShardedModel> ShardedModel::create(torch::nn::Module& model, CommunicatorPtr comm,
                                                   const Options& options) {
  CONVOY_REQUIRE(comm != nullptr, kInvalidArgument, "FSDP: the communicator is null");
  UnitPlan plan = plan_units(model, options.wrap, options.ignored);
  require_kept_units(plan, options.reshard_after_forward);
  const PrecisionPlan precision = plan_precision(model, plan, options.mixed_precision);
  auto description = describe_for_comparison(plan, model, options);
  for (auto& line : describe_for_comparison(precision, plan)) {
    description.push_back(std::move(line));
  }
  compare_over_ranks(*comm, description);
  std::vector<std::vector<UnitBase*>> modules;
  for (const PlannedUnit& unit : plan.units) modules.push_back(unit.modules);
  const auto sharded = std::make_shared<ShardedModel>(Private{}, std::move(comm), std::move(plan),
                                                      precision, options);
  for (ParamGroup& group : sharded->groups_) group.fill(sharded->comm_->rank() == 0);
  broadcast_buffers(*sharded->comm_, model);
  for (std::size_t u = 0; u < modules.size(); ++u) {
    // Shown whole for shapes and dtypes only: what the full buffer holds does not matter.
    sharded->groups_[u].param().show(FlatParam::Shows::kCompute);
    sharded->take_accumulators(u);
    sharded->groups_[u].take_over();
    for (std::size_t m = 0; m < modules[u].size(); ++m) {
      modules[u][m]->convoy_unit_behaviour() = std::make_shared<Behaviour>(sharded, u, m);
    }
  }
  return sharded;
}

void ShardedModel::take_accumulators(std::size_t unit) {
  // Weakly: the accumulator that holds the hook is held by the model.
  const std::weak_ptr<ShardedModel> weak = weak_from_this();
  groups_[unit].param().take_accumulators([&](std::size_t leaf, Node& accumulator) {
    accumulators_[&accumulator] = {unit, leaf};
    hook_accumulator(accumulator, [weak, unit, leaf](const at::Tensor& gradient) {
      const auto model = weak.lock();
      return model != nullptr && model->on_gradient(unit, leaf, gradient);
    });
  });
}

ForwardRun ShardedModel::begin_forward(std::size_t unit, std::size_t module, bool trains) {
  require_no_scope("forward of unit " + groups_[unit].name());
  const auto thread = backward_thread_.load();
  const bool in_backward = thread == std::this_thread::get_id();
  CONVOY_REQUIRE(in_backward || thread == std::thread::id(), kMisuse, "FSDP: forward of unit ",
                 groups_[unit].name(),
                 " while a backward of the same model runs in another thread");
  auto run =
      runs_->begin(unit, module, in_backward, [this](std::size_t u) { take_accumulators(u); });
  run.counts = trains && run.graph && !in_backward && groups_[unit].is_root();
  return run;
}

void ShardedModel::finish_forward(const ForwardRun& run, const std::vector<at::Tensor>& outputs) {
  trace_compute("unit forward", run.unit, run.begin_ns, trace::now_ns());
  const auto nodes = runs_->finish(run, outputs);
  if (run.counts && synchronises_) ++forwards_;
  if (nodes.empty()) return;
  const auto record = std::make_shared<UnitRun>();
  record->unit = run.unit;
  record->on_node = [model = shared_from_this()](UnitRun& own, const Node& reached) {
    model->join_backward().on_node(own, reached);
  };
  hook_run(record, nodes, &groups_[run.unit]);
}

void ShardedModel::abandon_forward(const ForwardRun& run) noexcept { runs_->abandon(run); }

BackwardPass& ShardedModel::join_backward() {
  require_no_scope("a backward");
  const auto me = std::this_thread::get_id();
  std::thread::id none;
  if (!backward_thread_.compare_exchange_strong(none, me)) {
    CONVOY_REQUIRE(none == me, kMisuse,
                   "FSDP: two backwards of one model at the same time, in two threads");
    return *backward_;
  }
  try {
    CONVOY_REQUIRE(!at::GradMode::is_enabled(), kMisuse,
                   "FSDP: backward with create_graph is not supported: parameters are given up "
                   "before a second derivative could read them");
    // Without a root unit nothing says where a forward of the model begins.
    const std::int64_t forwards = groups_.front().is_root() ? forwards_ : 1;
    backward_.emplace(
        BackwardSetup{groups_, *gatherer_, *comm_, order_, flags_, accumulators_, forwards},
        ++backwards_, synchronises_);
    const auto end = std::make_shared<EndOfBackward>(shared_from_this());
    torch::autograd::Engine::get_default_engine().queue_callback([end] { end->run(); });
  } catch (...) {
    backward_.reset();
    backward_thread_.store({});
    throw;
  }
  return *backward_;
}

bool ShardedModel::on_gradient(std::size_t unit, std::size_t leaf, const at::Tensor& gradient) {
  CONVOY_REQUIRE(backward_thread_.load() == std::this_thread::get_id(), kMisuse,
                 "FSDP: parameter '", groups_[unit].param().leaves()[leaf].name,
                 "' got a gradient although no unit of ",
                 "the model was gathered: it was used outside of its unit's forward, where it is "
                 "only a shard");
  backward_->on_gradient(unit, leaf, gradient);
  return true;
}

void ShardedModel::trace_compute(const char* name, std::optional<std::size_t> unit,
                                 std::int64_t begin_ns, std::int64_t end_ns) const {
  trace::Sink* sink = comm_->trace_sink();
  if (sink == nullptr) return;
  sink->record({.name = name,
                .detail = unit ? groups_[*unit].name() : std::string(),
                .category = "compute",
                .begin_ns = begin_ns,
                .end_ns = end_ns,
                .bytes = 0});
}

void ShardedModel::finish_backward() {
  try {
    trace_compute("backward", std::nullopt, backward_->begin_ns(), backward_->last_gradient_ns());
    const bool synchronised = backward_->finish(/*learn_order=*/!order_is_learnt_);
    order_is_learnt_ = order_is_learnt_ || synchronised;
    if (backward_->brings_gradients()) forwards_ = 0;
  } catch (...) {
    abandon_backward();
    throw;
  }
  backward_.reset();
  backward_thread_.store({});
}

void ShardedModel::abandon_backward() noexcept {
  if (!backward_) return;
  if (backward_->owes_peers()) {
    comm_->abort(Error(ErrorKind::kFailed,
                       concat("FSDP: a backward on rank ", comm_->rank(), " ended with an error ",
                              "before its gradients were reduced; see that rank's own message"),
                       comm_->rank()));
  }
  backward_->abandon();
  forwards_ = 0;
  backward_.reset();
  backward_thread_.store({});
}

}  // namespace convoy::fsdp
