// The schedule's values, and that it drives every kind of torch optimizer.
#include "convoy/optim/warmup_cosine.h"

#include "convoy/base/error.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/sgd.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <cmath>

namespace {

using namespace convoy;
using optim::warmup_cosine_lr;

at::Tensor parameter() { return torch::ones({3}).requires_grad_(); }

double rate(const torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

}  // namespace

TEST_CASE("warmup_cosine_lr: warm-up, peak, middle, end and beyond") {
  const WarmupCosineOptions options{.warmup_steps = 4, .total_steps = 14, .min_lr = 0.1};
  REQUIRE(warmup_cosine_lr(options, 1.0, 0) == 0.25);
  REQUIRE(warmup_cosine_lr(options, 1.0, 2) == 0.75);
  REQUIRE(warmup_cosine_lr(options, 1.0, 3) == 1.0);
  REQUIRE(warmup_cosine_lr(options, 1.0, 4) == 1.0);
  REQUIRE(warmup_cosine_lr(options, 1.0, 9) == Approx(0.55));
  REQUIRE(warmup_cosine_lr(options, 1.0, 14) == 0.1);
  REQUIRE(warmup_cosine_lr(options, 1.0, 1000) == 0.1);
  REQUIRE(warmup_cosine_lr(options, 1.0, -3) == 0.25);
  for (int step = 4; step < 14; ++step) {
    REQUIRE(warmup_cosine_lr(options, 1.0, step) > warmup_cosine_lr(options, 1.0, step + 1));
  }
  const WarmupCosineOptions no_warmup{.warmup_steps = 0, .total_steps = 2};
  REQUIRE(warmup_cosine_lr(no_warmup, 3.0, 0) == 3.0);
  REQUIRE(warmup_cosine_lr(no_warmup, 3.0, 1) == Approx(1.5));
  const WarmupCosineOptions only_warmup{.warmup_steps = 2, .total_steps = 2, .min_lr = 0.5};
  REQUIRE(warmup_cosine_lr(only_warmup, 1.0, 1) == 1.0);
  REQUIRE(warmup_cosine_lr(only_warmup, 1.0, 2) == 0.5);
}

TEST_CASE("WarmupCosine sets the rate of any optimizer, step by step") {
  const WarmupCosineOptions options{.warmup_steps = 2, .total_steps = 10, .min_lr = 1e-4};
  const auto check = [&](torch::optim::Optimizer& optimizer) {
    const double peak = rate(optimizer);
    WarmupCosine schedule(optimizer, options);
    for (int step = 0; step < 13; ++step) {
      REQUIRE(rate(optimizer) == warmup_cosine_lr(options, peak, step));
      REQUIRE(schedule.lr() == rate(optimizer));
      schedule.step();
    }
    schedule.jump_to(5);
    REQUIRE(rate(optimizer) == warmup_cosine_lr(options, peak, 5));
    schedule.step();
    REQUIRE(rate(optimizer) == warmup_cosine_lr(options, peak, 6));
  };
  optim::AdamW adamw({parameter()}, {.lr = 3e-3});
  optim::SGD sgd({parameter()}, {.lr = 0.1});
  torch::optim::AdamW torch_adamw({parameter()}, torch::optim::AdamWOptions(2e-3));
  torch::optim::RMSprop rmsprop({parameter()}, torch::optim::RMSpropOptions(1e-2));
  check(adamw);
  check(sgd);
  check(torch_adamw);
  check(rmsprop);
}

TEST_CASE("WarmupCosine gives each group its own peak") {
  optim::AdamW adamw({{.params = {parameter()}}, {.params = {parameter()}, .lr = 0.5}},
                     {.lr = 0.25});
  WarmupCosine schedule(adamw, {.warmup_steps = 5, .total_steps = 10, .min_lr = 0.0});
  REQUIRE(rate(adamw, 0) == 0.05);
  REQUIRE(rate(adamw, 1) == 0.1);
}

TEST_CASE("WarmupCosine refuses what cannot work") {
  optim::SGD sgd({parameter()}, {.lr = 0.1});
  const auto make = [&](WarmupCosineOptions options) { WarmupCosine(sgd, options); };
  using test::check_throws;
  check_throws(ErrorKind::kInvalidArgument, "total_steps", [&] { make({}); });
  check_throws(ErrorKind::kInvalidArgument, "warmup_steps is 5",
               [&] { make({.warmup_steps = 5, .total_steps = 4}); });
  check_throws(ErrorKind::kInvalidArgument, "min_lr is 0.2",
               [&] { make({.total_steps = 4, .min_lr = 0.2}); });
  WarmupCosine schedule(sgd, {.total_steps = 4});
  check_throws(ErrorKind::kInvalidArgument, "-1", [&] { schedule.jump_to(-1); });
  sgd.add_param_group(torch::optim::OptimizerParamGroup({parameter()}));
  check_throws(ErrorKind::kMisuse, "parameter groups", [&] { schedule.step(); });
}
