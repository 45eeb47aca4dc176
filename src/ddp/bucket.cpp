// One bucket: gradients that lie end to end and are averaged over the ranks by one operation.
#include "ddp/bucket.h"

#include "convoy/base/check.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace convoy::ddp {
namespace {

/// The strides that autograd wants a gradient to have: the parameter's own where it is dense, so
/// that adding to the gradient and stepping run over both in the same order.
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()));
  std::int64_t step = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = step;
    step *= parameter.size(static_cast<std::int64_t>(i));
  }
  return strides;
}

std::string bucket_name(const BucketPlan& plan, std::size_t index,
                        std::span<const Parameter> parameters) {
  return concat("bucket ", index, " (", parameters[plan.slots.front().parameter].name,
                plan.slots.size() > 1 ? " ..)" : ")");
}

bool allowed(BucketState from, BucketState to) {
  switch (from) {
    case BucketState::kFilling:
    case BucketState::kReopened: return to == BucketState::kLaunched;
    case BucketState::kLaunched: return to == BucketState::kFilling || to == BucketState::kReopened;
  }
  return false;
}

std::string_view to_string(BucketState state) {
  switch (state) {
    case BucketState::kFilling: return "filling";
    case BucketState::kLaunched: return "launched";
    case BucketState::kReopened: return "reopened";
  }
  return "unknown";
}

}  // namespace

GradientSlot::GradientSlot(const SlotPlan& plan, const Parameter& parameter, const at::Tensor& flat)
    : parameter_(plan.parameter), name_(parameter.name) {
  const at::NoGradGuard no_grad;
  // variable_data: the same memory without the mark of a view, which detach_() would refuse.
  view_ = at::as_strided(flat, parameter.tensor.sizes(), gradient_strides(parameter.tensor),
                         flat.storage_offset() + plan.begin)
              .variable_data();
  flags_ = flat.narrow(0, plan.begin + plan.numel, kFlagsPerSlot).variable_data();
  data_ = view_.const_data_ptr();
}

bool GradientSlot::holds(const at::Tensor& grad) const {
  return grad.defined() && grad.layout() == at::kStrided &&
         grad.scalar_type() == view_.scalar_type() && grad.sizes() == view_.sizes() &&
         grad.strides() == view_.strides() && grad.has_storage() &&
         grad.storage().unsafeGetStorageImpl() == view_.storage().unsafeGetStorageImpl() &&
         grad.const_data_ptr() == data_;
}

void GradientSlot::adopt(at::Tensor& grad) const {
  if (holds(grad)) return;
  copy_from(grad);
  grad = view();
}

void GradientSlot::require_fits(const at::Tensor& grad) const {
  CONVOY_REQUIRE(grad.layout() == at::kStrided, kInvalidArgument,
                 "DistributedDataParallel: the gradient of parameter ", name_,
                 " is sparse; build its layer without sparse gradients");
  CONVOY_REQUIRE(grad.sizes() == view_.sizes() && grad.scalar_type() == view_.scalar_type(),
                 kInvalidArgument, "DistributedDataParallel: the gradient of parameter ", name_,
                 " is ", grad.scalar_type(), " ", grad.sizes(), ", the parameter is ",
                 view_.scalar_type(), " ", view_.sizes());
}

void GradientSlot::copy_from(const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  at::Tensor target = view();
  if (!grad.defined()) {
    target.zero_();
    return;
  }
  require_fits(grad);
  target.copy_(grad);
}

at::Tensor GradientSlot::flat(const at::Tensor& grad) const {
  require_fits(grad);
  if (grad.strides() != view_.strides() || grad.is_conj() || grad.is_neg() ||
      !grad.is_non_overlapping_and_dense()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  return at::as_strided(grad, {grad.numel()}, {1});
}

at::Tensor GradientSlot::view() const { return view_.variable_data(); }

void GradientSlot::write_usage(bool used, bool missed) const {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flags_.scalar_type(), "write_usage",
                                  [&] {
                                    auto* flags = flags_.mutable_data_ptr<scalar_t>();
                                    flags[0] = static_cast<scalar_t>(used ? 1.0F : 0.0F);
                                    flags[1] = static_cast<scalar_t>(missed ? 1.0F : 0.0F);
                                  });
}

Usage GradientSlot::read_usage() const {
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, flags_.scalar_type(), "read_usage", [&] {
        const auto* flags = flags_.const_data_ptr<scalar_t>();
        return Usage{static_cast<double>(flags[0]), static_cast<double>(flags[1])};
      });
}

Bucket::Bucket(const BucketPlan& plan, std::size_t index, std::span<const Parameter> parameters,
               const at::Tensor& flat, Communicator& communicator)
    : name_(bucket_name(plan, index, parameters)) {
  const at::NoGradGuard no_grad;
  data_ = flat.narrow(0, plan.begin, plan.numel);
  own_ = communicator.own_part(OpKind::kAllReduce, data_);
  slots_.reserve(plan.slots.size());
  for (const SlotPlan& slot : plan.slots) {
    slots_.emplace_back(slot, parameters[slot.parameter], flat);
    stays_.push_back({.begin = slot.begin - plan.begin});
  }
}

std::int64_t Bucket::bytes() const noexcept { return static_cast<std::int64_t>(data_.nbytes()); }

void Bucket::rearm() {
  // What a failed backward left in flight is dropped: its communicator has failed with it.
  work_.reset();
  state_ = BucketState::kFilling;
  awaited_ = slots_.size();
  for (Stay& stay : stays_) stay.piece = {};
}

void Bucket::take(std::size_t slot, at::Tensor& grad) {
  Stay& stay = stays_[slot];
  stay.piece = {};
  if (slots_[slot].holds(grad)) return;
  if (const at::Tensor values = slots_[slot].flat(grad); values.defined()) {
    stay.piece = copy_but_own(data_, stay.begin, values, own_);
  } else {
    slots_[slot].copy_from(grad);
  }
  if (!stay.piece.values.defined()) grad = slots_[slot].view();
  stay.version = grad.unsafeGetTensorImpl()->version_counter().current_version();
}

void Bucket::settle_gradient(std::size_t slot, at::Tensor& grad) {
  Stay& stay = stays_[slot];
  if (!stay.piece.values.defined()) return;
  const bool is_as_taken =
      grad.defined() && grad.is_alias_of(stay.piece.values) &&
      grad.unsafeGetTensorImpl()->version_counter().current_version() == stay.version;
  if (!is_as_taken) {
    slots_[slot].copy_from(grad);
    stay.piece = {};
  }
  grad = slots_[slot].view();
}

void Bucket::count_ready() {
  CONVOY_CHECK(awaited_ > 0, name_);
  --awaited_;
}

void Bucket::launch(Communicator& communicator, std::string tag) {
  enter(BucketState::kLaunched);
  OwnValues own;
  for (Stay& stay : stays_) {
    if (stay.piece.values.defined()) own.push_back(std::exchange(stay.piece, {}));
  }
  work_ = communicator.all_reduce(data_, ReduceOp::kAvg, {.tag = std::move(tag)}, std::move(own));
}

void Bucket::finish() {
  work_->wait();
  work_.reset();
  enter(BucketState::kFilling);
}

void Bucket::reopen() {
  work_->wait();
  work_.reset();
  enter(BucketState::kReopened);
}

void Bucket::enter(BucketState to) {
  CONVOY_CHECK(allowed(state_, to), name_, ": ", to_string(state_), " -> ", to_string(to));
  state_ = to;
}

}  // namespace convoy::ddp
