// A learning rate that rises linearly and then falls along half a cosine.
#include "convoy/optim/warmup_cosine.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace convoy::optim {

double warmup_cosine_lr(const WarmupCosineOptions& options, double peak, std::int64_t step) {
  step = std::max<std::int64_t>(step, 0);
  if (step < options.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (step >= options.total_steps) return options.min_lr;
  const double done = static_cast<double>(step - options.warmup_steps) /
                      static_cast<double>(options.total_steps - options.warmup_steps);
  return options.min_lr + (peak - options.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

WarmupCosine::WarmupCosine(torch::optim::Optimizer& optimizer, WarmupCosineOptions options)
    : LRScheduler(optimizer), options_(options), peaks_(get_current_lrs()) {
  CONVOY_REQUIRE(options.total_steps > 0 && options.warmup_steps >= 0 &&
                     options.warmup_steps <= options.total_steps,
                 kInvalidArgument, "WarmupCosine: warmup_steps is ", options.warmup_steps,
                 " and total_steps ", options.total_steps,
                 "; needed is 0 <= warmup_steps <= total_steps and total_steps > 0");
  CONVOY_REQUIRE(options.total_steps <= std::numeric_limits<unsigned>::max(), kInvalidArgument,
                 "WarmupCosine: total_steps is ", options.total_steps,
                 "; torch's schedulers count up to ", std::numeric_limits<unsigned>::max());
  for (const double peak : peaks_) {
    CONVOY_REQUIRE(options.min_lr >= 0 && options.min_lr <= peak, kInvalidArgument,
                   "WarmupCosine: min_lr is ", options.min_lr, " and a group's learning rate ",
                   peak, "; needed is 0 <= min_lr <= learning rate");
  }
  step();
}

void WarmupCosine::jump_to(std::int64_t step) {
  CONVOY_REQUIRE(step >= 0 && step < std::numeric_limits<unsigned>::max(), kInvalidArgument,
                 "WarmupCosine: there is no step ", step);
  step_count_ = static_cast<unsigned>(step);
  this->step();
}

double WarmupCosine::lr() const { return get_current_lrs().at(0); }

std::vector<double> WarmupCosine::get_lrs() {
  CONVOY_REQUIRE(get_current_lrs().size() == peaks_.size(), kMisuse,
                 "WarmupCosine: the optimizer has ", get_current_lrs().size(),
                 " parameter groups and had ", peaks_.size(),
                 " when the schedule was made; make the schedule after adding groups");
  std::vector<double> rates;
  rates.reserve(peaks_.size());
  for (const double peak : peaks_) {
    rates.push_back(warmup_cosine_lr(options_, peak, step_count_));
  }
  return rates;
}

}  // namespace convoy::optim
