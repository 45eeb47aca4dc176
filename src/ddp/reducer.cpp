// Averages gradients over the ranks while backward runs, bucket by bucket in order.
#include "ddp/reducer.h"

#include "convoy/base/check.h"
#include "convoy/base/exception_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace convoy::ddp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25;
constexpr double kDefaultFirstCapMb = 1;

BucketLimits limits_of(const DistributedDataParallelOptions& options, const Communicator& comm) {
  const auto preferred = comm.preferred_bytes();
  const double most = preferred ? static_cast<double>(*preferred) / kMiB : kDefaultCapMb;
  const double cap = options.bucket_cap_mb.value_or(std::min(kDefaultCapMb, most));
  const double first = options.first_bucket_cap_mb.value_or(
      options.bucket_cap_mb ? *options.bucket_cap_mb : kDefaultFirstCapMb);
  return {.first_bytes = static_cast<std::int64_t>(first * kMiB),
          .cap_bytes = static_cast<std::int64_t>(cap * kMiB)};
}

/// The tag that all ranks compare. Normally one training forward precedes a backward; a rank whose
/// backward failed unseen, or that skipped one, comes with another count and is found out.
std::string tag_of(const Bucket& bucket, const BackwardPass& pass) {
  if (pass.forwards == 1) return bucket.name();
  return concat(bucket.name(), " after ", pass.forwards, " forwards");
}

}  // namespace

Reducer::Reducer(std::vector<Parameter> parameters, CommunicatorPtr comm,
                 const DistributedDataParallelOptions& options)
    : parameters_(std::move(parameters)),
      comm_(std::move(comm)),
      find_unused_(options.find_unused_parameters),
      limits_(limits_of(options, *comm_)),
      seen_(parameters_.size(), Seen::kNothing),
      expected_(parameters_.size(), 1),
      hooks_(parameters_, *this) {
  for (const Parameter& parameter : parameters_) {
    plan_parameters_.push_back({parameter.tensor.numel(), parameter.tensor.scalar_type()});
  }
  const auto order = reverse_order(parameters_.size());
  const Plan plan = plan_buckets(plan_parameters_, order, limits_);
  for (const FlatPlan& flat : plan.flats) {
    flats_.emplace_back(flat.dtype, comm_->allocate(flat.numel, flat.dtype, {.tag = "gradients"}));
  }
  build_buckets(plan);
}

void Reducer::build_buckets(const Plan& plan) {
  buckets_.clear();
  places_.assign(parameters_.size(), {});
  for (std::size_t index = 0; index < plan.buckets.size(); ++index) {
    const BucketPlan& bucket = plan.buckets[index];
    const auto flat = std::find_if(flats_.begin(), flats_.end(),
                                   [&](const auto& entry) { return entry.first == bucket.dtype; });
    CONVOY_CHECK(flat != flats_.end());
    buckets_.emplace_back(bucket, index, parameters_, flat->second, *comm_);
    for (std::size_t slot = 0; slot < bucket.slots.size(); ++slot) {
      places_[bucket.slots[slot].parameter] = {index, slot};
    }
  }
}

void Reducer::rebuild_buckets() {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(parameters_.size());
  at::Tensor order = at::empty({count}, at::kLong);
  std::copy(ready_order_.begin(), ready_order_.end(), order.mutable_data_ptr<std::int64_t>());
  comm_->broadcast(order, 0, {.tag = "bucket order"})->wait();
  const auto* indices = order.const_data_ptr<std::int64_t>();
  ready_order_.assign(indices, indices + count);

  // The new places overlap the old ones, so gradients that are kept must step aside meanwhile.
  std::vector<std::pair<std::size_t, at::Tensor>> kept;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].tensor.grad();
    if (slot_of(i).holds(grad)) kept.emplace_back(i, grad.clone());
  }
  build_buckets(plan_buckets(plan_parameters_, ready_order_, limits_));
  for (auto& [dtype, flat] : flats_) flat.zero_();
  for (auto& [parameter, grad] : kept) {
    slot_of(parameter).adopt(grad);
    parameters_[parameter].tensor.mutable_grad() = grad;
  }
  ready_order_.clear();
  rebuilt_ = true;
}

const GradientSlot& Reducer::slot_of(std::size_t parameter) const {
  const Place place = places_[parameter];
  return buckets_[place.bucket].slots()[place.slot];
}

std::int64_t Reducer::bucket_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const auto& [dtype, flat] : flats_) bytes += static_cast<std::int64_t>(flat.nbytes());
  return bytes;
}

void Reducer::require_usable() const {
  const auto cause = failure_ ? failure_ : comm_->failure();
  if (!cause) return;
  throw Error(ErrorKind::kFailed,
              concat("DistributedDataParallel is in a failed state: ", cause->what(),
                     ". To go on, make a new communicator (make_communicator) and wrap the module "
                     "again."),
              cause->rank());
}

void Reducer::require_unchanged() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    CONVOY_REQUIRE(
        tensor.requires_grad(), kMisuse, "DistributedDataParallel: parameter ", parameters_[i].name,
        " was frozen after wrapping; wrap the module again after changing requires_grad");
    CONVOY_REQUIRE(tensor.scalar_type() == plan_parameters_[i].dtype &&
                       tensor.numel() == plan_parameters_[i].numel && hooks_.is_current(i, tensor),
                   kMisuse, "DistributedDataParallel: parameter ", parameters_[i].name,
                   " changed its dtype, size or device after wrapping; convert the module first, "
                   "then wrap it");
  }
}

void Reducer::watch(const at::Tensor& output) {
  // Leaves keep hooks for ever, and a leaf that is returned has no node that could begin anything.
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) return;
  output.register_hook([weak = weak_from_this()](const at::Tensor&) {
    const auto reducer = weak.lock();
    if (!reducer) return;
    // autograd::grad, or backward towards chosen inputs: parameters fire only if they were chosen.
    const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
    if (chosen != nullptr && !chosen->empty()) return;
    reducer->begin_backward(BackwardPass::Begin::kAtOutput);
  });
}

void Reducer::begin_backward(BackwardPass::Begin begin) {
  if (pass_) {
    CONVOY_REQUIRE(pass_->thread == std::this_thread::get_id(), kMisuse,
                   "DistributedDataParallel: two threads run a backward through one wrapper");
    return;
  }
  require_usable();
  CONVOY_REQUIRE(
      !at::GradMode::is_enabled(), kMisuse,
      "DistributedDataParallel does not support backward with create_graph: the mean of "
      "the gradients over the ranks cannot be differentiated. For a penalty on gradients "
      "with respect to inputs use torch::autograd::grad, then a plain backward");
  const bool synchronised = !is_paused();
  if (synchronised && !ready_order_.empty()) rebuild_buckets();
  pass_.emplace();
  pass_->begin = begin;
  pass_->graph_task = torch::autograd::get_current_graph_task_id();
  pass_->thread = std::this_thread::get_id();
  pass_->synchronised = synchronised;
  pass_->forwards = forwards_;
  pass_->begin_ns = trace::now_ns();
  pass_->last_gradient_ns = pass_->begin_ns;
  pass_->arrivals.assign(parameters_.size(), 0);
  pass_->order.reserve(parameters_.size());
  pass_->kept_aside.resize(parameters_.size());
  for (Bucket& bucket : buckets_) bucket.rearm();
  enter(Phase::kBackward);
  watch_backward(weak_from_this());
}

void Reducer::before_accumulate(std::size_t parameter) {
  if (!pass_ || !pass_->synchronised) return;
  Bucket& bucket = buckets_[places_[parameter].bucket];
  // See Note [Re-entrant backward].
  if (bucket.state() == BucketState::kLaunched) bucket.reopen();
}

void Reducer::after_accumulate(std::size_t parameter, bool defined) {
  begin_backward(BackwardPass::Begin::kAtParameter);
  BackwardPass& pass = *pass_;
  pass.last_gradient_ns = trace::now_ns();
  at::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
  if (defined && grad.defined()) {
    take(parameter, grad, pass);
    seen_[parameter] = Seen::kGradient;
  } else if (seen_[parameter] == Seen::kNothing) {
    seen_[parameter] = Seen::kUndefined;
  }
  if (!learned_ && torch::autograd::get_current_graph_task_id() != pass.graph_task) {
    pass.launches_at_end = true;
  }
  if (++pass.arrivals[parameter] == expected_[parameter]) {
    pass.order.push_back(parameter);
    buckets_[places_[parameter].bucket].count_ready();
  }
  if (!pass.synchronised) return;
  if (!pass.launches_at_end) launch_ready(pass);
  comm_->poll();
}

void Reducer::take(std::size_t parameter, at::Tensor& grad, const BackwardPass& pass) {
  const Place place = places_[parameter];
  Bucket& bucket = buckets_[place.bucket];
  if (pass.synchronised) return bucket.take(place.slot, grad);
  bucket.slots()[place.slot].adopt(grad);
}

void Reducer::launch_ready(BackwardPass& pass) {
  for (; pass.next_bucket < buckets_.size() && buckets_[pass.next_bucket].is_ready();
       ++pass.next_bucket) {
    Bucket& bucket = buckets_[pass.next_bucket];
    launch(bucket, pass);
    if (pass.order.size() < parameters_.size()) stats_.overlapped_bytes += bucket.bytes();
  }
}

void Reducer::launch(Bucket& bucket, BackwardPass& pass) {
  for (std::size_t i = 0; i < bucket.slots().size(); ++i) {
    const GradientSlot& slot = bucket.slots()[i];
    bucket.settle_gradient(i, parameters_[slot.parameter()].tensor.mutable_grad());
    complete(slot, pass);
  }
  bucket.launch(*comm_, tag_of(bucket, pass));
  stats_.reduced_bytes += bucket.bytes();
}

void Reducer::complete(const GradientSlot& slot, BackwardPass& pass) {
  const std::size_t parameter = slot.parameter();
  const bool used = seen_[parameter] == Seen::kGradient;
  if (!used || pass.arrivals[parameter] == 0) {
    const at::Tensor& grad = parameters_[parameter].tensor.grad();
    // A gradient from before this backward takes part in the mean, as it does where others add to
    // it. If it turns out that no rank used the parameter it comes back bit for bit.
    if (!slot.holds(grad)) {
      slot.copy_from(grad);
    } else if (!used) {
      pass.kept_aside[parameter] = grad.clone();
    }
  }
  slot.write_usage(used, seen_[parameter] == Seen::kNothing);
}

void Reducer::on_backward_end() {
  CONVOY_CHECK(pass_.has_value());
  BackwardPass pass = std::move(*pass_);
  pass_.reset();
  try {
    // Outside any node this callback belongs to the outermost task.
    CONVOY_REQUIRE(
        pass.begin == BackwardPass::Begin::kAtOutput ||
            torch::autograd::get_current_node() == nullptr,
        kMisuse,
        "DistributedDataParallel: a backward inside another one (activation checkpointing) reached "
        "parameters, and the outer one did not pass an output of the wrapper. Call the wrapper and "
        "let its forward return the tensors that the loss is made of (in tuples, vectors or maps)");
    if (pass.synchronised) finish_synchronised(pass);
  } catch (const Error& error) {
    fail(error);
    throw;
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, exception_text(error), comm_->rank()));
    throw;
  }
  enter(Phase::kIdle);
  forwards_ = 0;
  record(pass);
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (pass.arrivals[i] > 0) expected_[i] = pass.arrivals[i];
  }
  learned_ = true;
  if (!pass.synchronised) {
    ++stats_.local_backwards;
    return;
  }
  ++synchronised_backwards_;
  ++stats_.synchronised_backwards;
  std::fill(seen_.begin(), seen_.end(), Seen::kNothing);
  std::vector<MissedParameter> missed;
  for (const Bucket& bucket : buckets_) {
    for (const GradientSlot& slot : bucket.slots()) settle(slot, pass, missed);
  }
  if (!missed.empty() && !find_unused_) {
    throw Error(ErrorKind::kMisuse, describe_missed(missed, comm_->size()));
  }
  if (!rebuilt_ && !find_unused_ && pass.order.size() == parameters_.size()) {
    ready_order_ = std::move(pass.order);
  }
}

void Reducer::finish_synchronised(BackwardPass& pass) {
  for (Bucket& bucket : buckets_) {
    if (bucket.state() != BucketState::kLaunched) launch(bucket, pass);
  }
  for (Bucket& bucket : buckets_) bucket.finish();
}

void Reducer::settle(const GradientSlot& slot, const BackwardPass& pass,
                     std::vector<MissedParameter>& missed) {
  const std::size_t parameter = slot.parameter();
  const Usage usage = slot.read_usage();
  if (usage.used > 0) {
    at::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
    if (!slot.holds(grad)) grad = slot.view();
  } else if (pass.kept_aside[parameter].defined()) {
    slot.copy_from(pass.kept_aside[parameter]);
  }
  if (usage.missed > 0) {
    missed.push_back(
        {parameters_[parameter].name, static_cast<int>(std::lround(usage.used * comm_->size()))});
  }
}

void Reducer::record(const BackwardPass& pass) const {
  trace::Sink* sink = comm_->trace_sink();
  if (sink == nullptr) return;
  sink->record({.name = "backward",
                .detail = pass.synchronised ? "synchronised" : "local",
                .category = "compute",
                .begin_ns = pass.begin_ns,
                .end_ns = pass.last_gradient_ns,
                .bytes = 0});
}

void Reducer::on_backward_failed() noexcept {
  if (!pass_) return;
  const BackwardPass pass = std::move(*pass_);
  pass_.reset();
  forwards_ = 0;
  if (pass.synchronised) std::fill(seen_.begin(), seen_.end(), Seen::kNothing);
  if (!pass.synchronised || comm_->size() == 1) {
    // Nobody waits for this rank: what is left of the gradients is the user's, as without DDP.
    enter(Phase::kIdle);
    return;
  }
  const std::size_t reached = std::min(pass.next_bucket, buckets_.size() - 1);
  fail(Error(ErrorKind::kPeerLost,
             concat("backward threw on rank ", comm_->rank(), " before it finished ",
                    tag_of(buckets_[reached], pass), "; the exception that rank ", comm_->rank(),
                    " saw is the cause"),
             comm_->rank()));
}

void Reducer::fail(Error error) noexcept {
  if (comm_->size() > 1) comm_->abort(error);
  // The communicator keeps the first failure, which may be older and better.
  const auto first = comm_->failure();
  failure_.emplace(first ? *first : std::move(error));
  enter(Phase::kFailed);
}

void Reducer::enter(Phase to) {
  const bool allowed = to == Phase::kBackward ? phase_ == Phase::kIdle : phase_ == Phase::kBackward;
  CONVOY_CHECK(allowed, "phase ", static_cast<int>(phase_), " -> ", static_cast<int>(to));
  phase_ = to;
}

}  // namespace convoy::ddp
