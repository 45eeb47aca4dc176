// Scales losses so that gradients in half precision do not vanish, in agreement over all ranks.
#include "convoy/optim/grad_scaler.h"

#include "convoy/base/check.h"
#include "optim/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace convoy::optim {
namespace {

// Between these both the scale and its inverse, by which gradients are multiplied, are normal
// numbers: a subnormal one has lost bits, or counts as 0, whose inverse is infinite.
constexpr float kLeastScale = std::numeric_limits<float>::min();  // 2^-126
constexpr float kMostScale = 1 / kLeastScale;

float checked_scale(double scale, const char* name) {
  const auto rounded = static_cast<float>(scale);
  CONVOY_REQUIRE(
      rounded >= kLeastScale && rounded <= kMostScale, kInvalidArgument, "GradScaler: ", name,
      " is ", scale,
      "; it must lie between 2^-126 and 2^126, so that float32 holds it and its inverse");
  return rounded;
}

void check_factors(const GradScalerOptions& options) {
  CONVOY_REQUIRE(options.growth_factor > 1 && std::isfinite(options.growth_factor),
                 kInvalidArgument, "GradScaler: growth_factor is ", options.growth_factor,
                 "; it must be above 1");
  CONVOY_REQUIRE(options.backoff_factor > 0 && options.backoff_factor < 1, kInvalidArgument,
                 "GradScaler: backoff_factor is ", options.backoff_factor,
                 "; it must lie between 0 and 1");
  CONVOY_REQUIRE(options.growth_interval >= 1, kInvalidArgument, "GradScaler: growth_interval is ",
                 options.growth_interval, "; it must be at least 1 step");
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), scale_(checked_scale(options.init_scale, "init_scale")) {
  check_factors(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  CONVOY_REQUIRE(loss.defined() && at::isFloatingType(loss.scalar_type()), kInvalidArgument,
                 "GradScaler::scale: the loss is ", loss.defined() ? "a " : "undefined",
                 loss.defined() ? loss.toString() : "", "; it must be a floating point tensor");
  return options_.enabled ? loss * static_cast<double>(scale_) : loss;
}

const GradScaler::Unscaled* GradScaler::find(const at::Tensor& leaf) const {
  for (const Unscaled& unscaled : unscaled_) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(leaf); };
    if (std::any_of(unscaled.leaves.begin(), unscaled.leaves.end(), same)) return &unscaled;
  }
  return nullptr;
}

void GradScaler::unscale_(std::span<const ShardSpan> spans, Communicator* comm) {
  if (!options_.enabled) return;
  Unscaled unscaled{{}, false};
  for (const ShardSpan& span : spans) {
    if (!span.leaf.defined() || !span.leaf.requires_grad()) continue;
    CONVOY_REQUIRE(find(span.leaf) == nullptr, kMisuse, "GradScaler::unscale_: the gradient of '",
                   span.name,
                   "' was already unscaled; unscale_ a model once a step, after its last backward, "
                   "and call update() at the end of the step");
    CONVOY_REQUIRE(span.leaf.scalar_type() != at::kHalf, kInvalidArgument,
                   "GradScaler::unscale_: parameter '", span.name,
                   "' is half, and so is its gradient, which would vanish when unscaled; keep "
                   "float32 parameters and compute in half (FSDP: param_dtype)");
    unscaled.leaves.push_back(span.leaf);
  }
  // An inf or nan anywhere is the largest magnitude, and all ranks get the same one.
  const double largest = gradient_norm(spans, comm, std::numeric_limits<double>::infinity(),
                                       "GradScaler::unscale_", concat("(scale=", scale_, ")"));
  unscaled.overflow = !std::isfinite(largest);

  const at::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1 / static_cast<double>(scale_));
  for (const ShardSpan& span : spans) {
    if (!span.leaf.defined() || !span.leaf.grad().defined()) continue;
    span.leaf.grad().detach().mul_(inverse);
  }
  unscaled_.push_back(std::move(unscaled));
}

void GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  unscale_(spans_of_process(parameters, "GradScaler::unscale_"), nullptr);
}

bool GradScaler::begin_step(const void* optimizer, const std::vector<at::Tensor>& parameters) {
  if (!options_.enabled) return true;
  CONVOY_REQUIRE(std::find(stepped_.begin(), stepped_.end(), optimizer) == stepped_.end(), kMisuse,
                 "GradScaler::step: this optimizer was already stepped; call update() at the end "
                 "of each step");
  CONVOY_REQUIRE(!unscaled_.empty(), kMisuse,
                 "GradScaler::step: no gradient was unscaled since the last update(); call "
                 "unscale_(model) after backward, where the ranks agree whether to step");
  bool overflow = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Unscaled* unscaled = find(parameters[i]);
    CONVOY_REQUIRE(unscaled != nullptr || !parameters[i].grad().defined(), kMisuse,
                   "GradScaler::step: parameter ", i, " of the optimizer (", parameters[i].sizes(),
                   ") has a gradient that was not unscaled; call unscale_ with every model that "
                   "this optimizer steps");
    if (unscaled != nullptr) overflow = overflow || unscaled->overflow;
  }
  stepped_.push_back(optimizer);
  return !overflow;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    scale_ = checked_scale(*new_scale, "new_scale");
  } else {
    CONVOY_REQUIRE(!unscaled_.empty(), kMisuse,
                   "GradScaler::update: no gradient was unscaled since the last update(), so there "
                   "is no step to end");
    const bool overflow = std::any_of(unscaled_.begin(), unscaled_.end(),
                                      [](const Unscaled& unscaled) { return unscaled.overflow; });
    if (overflow) {
      scale_ = std::max(static_cast<float>(scale_ * options_.backoff_factor), kLeastScale);
      growth_tracker_ = 0;
    } else if (++growth_tracker_ >= options_.growth_interval) {
      const auto grown = static_cast<float>(scale_ * options_.growth_factor);
      if (grown <= kMostScale) scale_ = grown;
      growth_tracker_ = 0;
    }
  }
  unscaled_.clear();
  stepped_.clear();
}

double GradScaler::get_scale() const { return options_.enabled ? static_cast<double>(scale_) : 1; }

void GradScaler::require_between_steps(const char* function) const {
  CONVOY_REQUIRE(unscaled_.empty(), kMisuse, "GradScaler::", function,
                 ": a step is half done; call it after update()");
}

GradScalerState GradScaler::state() const {
  require_between_steps("state");
  return {.scale = static_cast<double>(scale_), .growth_tracker = growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  require_between_steps("load_state");
  CONVOY_REQUIRE(state.growth_tracker >= 0, kInvalidArgument,
                 "GradScaler::load_state: growth_tracker is ", state.growth_tracker,
                 "; it must not be negative");
  scale_ = checked_scale(state.scale, "the loaded scale");
  growth_tracker_ = state.growth_tracker;
}

}  // namespace convoy::optim
