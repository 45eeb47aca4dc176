// A learning rate that rises linearly and then falls along half a cosine.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <vector>

namespace convoy::optim {

struct WarmupCosineOptions {
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< Warm-up included; from here on the rate stays at min_lr.
  double min_lr = 0;
};

/// The learning rate of step `step` (from 0). Warm-up: peak * (step + 1) / warmup_steps, so the
/// first step moves and step warmup_steps - 1 has the peak. Then from the peak at warmup_steps down
/// to min_lr at total_steps (Loshchilov and Hutter 2017, equation 5, without restarts). Pure.
double warmup_cosine_lr(const WarmupCosineOptions& options, double peak, std::int64_t step);

/// Sets the rates of any torch optimizer, each group's own rate at construction being its peak.
/// Like every torch scheduler, the construction sets the rate of step 0, and step(), called after
/// optimizer.step(), that of the next.
/// Errors (constructor): kInvalidArgument unless 0 <= warmup_steps <= total_steps, total_steps > 0
/// and 0 <= min_lr <= every group's rate.
/// The optimizer must outlive it. Groups added later are not scheduled: step() then throws kMisuse.
class WarmupCosine : public torch::optim::LRScheduler {
 public:
  WarmupCosine(torch::optim::Optimizer& optimizer, WarmupCosineOptions options);

  /// Sets the rates of step `step` (from 0), for example after a resume.
  void jump_to(std::int64_t step);
  /// The rate of the first group now.
  double lr() const;

 private:
  std::vector<double> get_lrs() override;

  WarmupCosineOptions options_;
  std::vector<double> peaks_;
};

}  // namespace convoy::optim

namespace convoy {
using optim::WarmupCosine;
using optim::WarmupCosineOptions;
}  // namespace convoy
