// GradScaler on plain gradients: the scale's schedule, inf and nan, ranks, misuse, state.
#include "convoy/optim/grad_scaler.h"

#include "convoy/comm/run_ranks.h"
#include "convoy/optim/clip_grad_norm.h"
#include "convoy/optim/sgd.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace {

using namespace convoy;
using test::check;
using test::check_equal;
using test::check_same_bits;
using test::check_throws;

constexpr float kOverflow = std::numeric_limits<float>::infinity();

/// One parameter of ones, stepped by SGD with a learning rate of 1.
struct ScaledRun {
  explicit ScaledRun(GradScalerOptions options = {}) : scaler(options) {}

  /// A step with this gradient of the true loss; true if it was made.
  bool step(float gradient) {
    parameter.mutable_grad().reset();
    scaler.scale((parameter * gradient).sum()).backward();
    scaler.unscale_({parameter});
    const bool stepped = scaler.step(sgd);
    scaler.update();
    return stepped;
  }

  at::Tensor parameter = torch::ones({33}).requires_grad_();
  optim::SGD sgd{std::vector<at::Tensor>{parameter}, optim::SGDOptions{.lr = 1}};
  GradScaler scaler;
};

}  // namespace

TEST_CASE("GradScaler: the scale grows after the interval and backs off after an overflow") {
  ScaledRun run({.init_scale = 8, .growth_interval = 3});
  REQUIRE(run.scaler.get_scale() == 8);
  for (const double expected : {8.0, 8.0, 16.0, 16.0}) {
    CHECK(run.step(0.5));
    CHECK(run.scaler.get_scale() == expected);
  }
  REQUIRE(run.parameter.eq(-1).all().item<bool>());  // 1 - 4 * 0.5, so each was unscaled.
  for (const float bad : {kOverflow, -kOverflow, std::numeric_limits<float>::quiet_NaN()}) {
    const double before = run.scaler.get_scale();
    CHECK_FALSE(run.step(bad));
    CHECK(run.scaler.get_scale() == before / 2);
    CHECK(run.parameter.eq(-1).all().item<bool>());
  }
  // The overflow began the count anew.
  for (const double expected : {2.0, 2.0, 4.0}) {
    CHECK(run.step(0.5));
    CHECK(run.scaler.get_scale() == expected);
  }
}

TEST_CASE("GradScaler: the defaults are PyTorch's, and the scale stays finite") {
  ScaledRun run;
  REQUIRE(run.scaler.get_scale() == 65536);
  REQUIRE(run.scaler.options().growth_interval == 2000);
  const double top = std::ldexp(1.0, 126);  // The inverse of a larger one is subnormal.
  ScaledRun large({.init_scale = top, .growth_interval = 1});
  CHECK(large.step(0));
  CHECK(large.scaler.get_scale() == top);
}

TEST_CASE("GradScaler: after any number of overflows in a row a step is a true one") {
  for (const double backoff : {0.5, 0.3, 1e-30}) {
    ScaledRun run({.init_scale = 1024, .backoff_factor = backoff, .growth_interval = 1});
    for (int i = 0; i < 160; ++i) CHECK_FALSE(run.step(kOverflow));
    CHECK(run.scaler.get_scale() == std::ldexp(1.0, -126));
    CHECK(run.step(0.5));  // By an inverse that is finite and normal.
    CHECK(run.parameter.eq(0.5).all().item<bool>());
    CHECK(run.scaler.get_scale() == std::ldexp(1.0, -125));
  }
  ScaledRun loaded;
  loaded.scaler.load_state({.scale = std::ldexp(1.0, -126)});
  CHECK(loaded.step(0.5));
  CHECK(loaded.parameter.eq(0.5).all().item<bool>());
}

TEST_CASE("GradScaler: not enabled it leaves everything alone") {
  ScaledRun run({.enabled = false});
  CHECK(run.step(0.5));
  CHECK(run.parameter.eq(0.5).all().item<bool>());
  CHECK(run.step(kOverflow));
  CHECK(run.scaler.get_scale() == 1);
}

TEST_CASE("GradScaler: calls in the wrong order are errors that say the right one") {
  ScaledRun run({.init_scale = 4});
  const auto backward = [&] { run.scaler.scale(run.parameter.sum()).backward(); };
  check_throws(ErrorKind::kMisuse, "no step to end", [&] { run.scaler.update(); });
  backward();
  check_throws(ErrorKind::kMisuse, "call unscale_(model)", [&] { run.scaler.step(run.sgd); });
  run.scaler.unscale_({run.parameter});
  check_throws(ErrorKind::kMisuse, "already unscaled",
               [&] { run.scaler.unscale_({run.parameter}); });
  check(run.parameter.grad().eq(1).all().item<bool>(), "unscaled once");
  check_throws(ErrorKind::kMisuse, "half done", [&] { run.scaler.state(); });
  const auto other = torch::ones({2}).requires_grad_();
  other.mutable_grad() = torch::ones({2});
  optim::SGD both({run.parameter, other}, optim::SGDOptions{.lr = 1});
  check_throws(ErrorKind::kMisuse, "parameter 1 of the optimizer", [&] { run.scaler.step(both); });
  check(run.scaler.step(run.sgd), "stepped");
  check_throws(ErrorKind::kMisuse, "call update()", [&] { run.scaler.step(run.sgd); });
  check_throws(ErrorKind::kMisuse, "call update()", [&] { run.scaler.unscale_({run.parameter}); });
  run.scaler.update();
  check(run.step(0), "a step after the errors");
}

TEST_CASE("GradScaler: values that cannot work are refused") {
  check_throws(ErrorKind::kInvalidArgument, "init_scale is 0",
               [] { GradScaler({.init_scale = 0}); });
  for (const double scale : {1e39, std::ldexp(1.0, 127), std::ldexp(1.0, -127), 1e-39, -2.0}) {
    check_throws(ErrorKind::kInvalidArgument, "init_scale is ",
                 [&] { GradScaler({.init_scale = scale}); });
    check_throws(ErrorKind::kInvalidArgument, "the loaded scale is ",
                 [&] { GradScaler().load_state({.scale = scale}); });
  }
  check_throws(ErrorKind::kInvalidArgument, "growth_factor is 1",
               [] { GradScaler({.growth_factor = 1}); });
  check_throws(ErrorKind::kInvalidArgument, "backoff_factor is 1",
               [] { GradScaler({.backoff_factor = 1}); });
  check_throws(ErrorKind::kInvalidArgument, "growth_interval is 0",
               [] { GradScaler({.growth_interval = 0}); });
  GradScaler scaler;
  check_throws(ErrorKind::kInvalidArgument, "undefined", [&] { scaler.scale({}); });
  const auto half = torch::ones({2}, at::kHalf).requires_grad_();
  check_throws(ErrorKind::kInvalidArgument, "is half", [&] { scaler.unscale_({half}); });
  check_throws(ErrorKind::kInvalidArgument, "new_scale is -1", [&] { scaler.update(-1); });
  check_throws(ErrorKind::kInvalidArgument, "growth_tracker is -1",
               [&] { scaler.load_state({.scale = 2, .growth_tracker = -1}); });
}

TEST_CASE("GradScaler: a state that is loaded goes on as the one that was saved") {
  ScaledRun first({.init_scale = 8, .growth_interval = 2});
  first.step(1);
  ScaledRun second({.growth_interval = 2});
  second.scaler.load_state(first.scaler.state());
  for (const float gradient : {1.0F, kOverflow, 1.0F, 1.0F}) {
    CHECK(first.step(gradient) == second.step(gradient));
    CHECK(first.scaler.get_scale() == second.scaler.get_scale());
  }
  second.scaler.update(3);
  CHECK(second.scaler.get_scale() == 3);
}

TEST_CASE("GradScaler: of two models the one that overflowed is not stepped") {
  ScaledRun run({.init_scale = 4});
  const auto other = torch::ones({5}).requires_grad_();
  optim::SGD other_sgd({other}, optim::SGDOptions{.lr = 1});
  run.scaler.scale(run.parameter.sum() + (other * kOverflow).sum()).backward();
  run.scaler.unscale_({run.parameter});
  run.scaler.unscale_({other});
  CHECK(run.scaler.step(run.sgd));
  CHECK_FALSE(run.scaler.step(other_sgd));
  run.scaler.update();
  CHECK(run.scaler.get_scale() == 2);
  CHECK(run.parameter.eq(0).all().item<bool>());
  CHECK(other.eq(1).all().item<bool>());
}

TEST_CASE("GradScaler: scales that differ between ranks are an error on all") {
  run_ranks(3, [](Rank& r) {
    const auto leaf = torch::ones({4}).requires_grad_();
    leaf.mutable_grad() = torch::full({4}, 8.0);
    const std::vector<ShardSpan> spans = {{"w", {4}, 0, 4, leaf, true}};
    GradScaler scaler({.init_scale = r.rank() == 1 ? 4.0 : 2.0});
    check_throws(ErrorKind::kMismatch, "scale=", [&] { scaler.unscale_(spans, &r.comm()); });
    check_same_bits(leaf.grad(), torch::full({4}, 8.0), "gradient after the error");
  });
}

TEST_CASE("GradScaler: a gradient that one rank cannot unscale is an error on all") {
  run_ranks(3, [](Rank& r) {
    const auto leaf = torch::ones({4}).requires_grad_();
    leaf.mutable_grad() = r.rank() == 2 ? torch::ones({4}).to_sparse() : torch::ones({4});
    const std::vector<ShardSpan> spans = {{"w", {4}, 0, 4, leaf, true}};
    GradScaler scaler({.init_scale = 2});
    check_throws(r.rank() == 2 ? ErrorKind::kInvalidArgument : ErrorKind::kMismatch,
                 r.rank() == 2 ? "gradient of 'w'" : "another rank",
                 [&] { scaler.unscale_(spans, &r.comm()); });
    if (r.rank() != 2) check(leaf.grad().eq(1).all().item<bool>(), "gradient after the error");
    leaf.mutable_grad() = torch::full({4}, 2.0);
    scaler.unscale_(spans, &r.comm());  // The error ended nothing.
    check(leaf.grad().eq(1).all().item<bool>(), "unscaled");
  });
}
