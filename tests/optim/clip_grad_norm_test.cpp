// clip_grad_norm_: torch's meaning, and one value in every strategy and world size.
#include "convoy/optim/clip_grad_norm.h"

#include "convoy/comm/run_ranks.h"
#include "optim/threads.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <bit>
#include <cmath>
#include <limits>

namespace {

using namespace convoy;
using test::check;
using test::check_equal;
using test::check_same_bits;
using test::check_throws;
using test::Threads;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<std::vector<std::int64_t>> kClippedShapes = {
    {5, 3}, {7}, {1}, {}, {0, 4}, {64}, {33}, {129, 17}, {40}, {1003}};

/// Parameters of kClippedShapes with gradients of very different magnitudes.
std::vector<at::Tensor> make_clipped_parameters(at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> params;
  auto generator = at::detail::createCPUGenerator(3);
  for (std::size_t i = 0; i < kClippedShapes.size(); ++i) {
    auto param = torch::zeros(kClippedShapes[i], dtype).requires_grad_();
    param.mutable_grad() = torch::randn(kClippedShapes[i], generator, torch::TensorOptions())
                               .mul_(std::pow(8.0, static_cast<double>(i % 4) - 2))
                               .to(dtype);
    params.push_back(param);
  }
  return params;
}

std::vector<ShardSpan> replicated_spans(const std::vector<at::Tensor>& params) {
  std::vector<ShardSpan> spans;
  for (std::size_t i = 0; i < params.size(); ++i) {
    spans.push_back(
        {concat("p", i), params[i].sizes().vec(), 0, params[i].numel(), params[i], true});
  }
  return spans;
}

/// Cuts each parameter at multiples of 32 into `world` slices, uneven and some empty.
std::vector<ShardSpan> sharded_spans(const std::vector<at::Tensor>& params, int rank, int world) {
  std::vector<ShardSpan> spans;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto numel = params[i].numel();
    const auto blocks = (numel + 31) / 32;
    const auto cut = [&](std::int64_t r) {
      return std::min(numel, 32 * (blocks * r * r / (world * world)));  // Later ranks hold more.
    };
    const auto begin = cut(rank);
    const auto length = cut(rank + 1) - begin;
    auto leaf = torch::zeros({length}, params[i].options()).requires_grad_();
    if (params[i].grad().defined()) {
      leaf.mutable_grad() = params[i].grad().flatten().narrow(0, begin, length).clone();
    }
    spans.push_back({concat("p", i), params[i].sizes().vec(), begin, length, leaf, false});
  }
  return spans;
}

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

/// Checks norm and scaled gradients of all forms at world sizes 1 to 5 against one process.
void check_all_strategies(at::ScalarType dtype, double p, double max_norm) {
  const auto single = make_clipped_parameters(dtype);
  const double expected = clip_grad_norm_(single, max_norm, p);
  for (int world = 1; world <= 5; ++world) {
    run_ranks(world, [&](Rank& r) {
      const auto params = make_clipped_parameters(dtype);
      const auto whole = replicated_spans(params);
      check_equal(bits(clip_grad_norm_(whole, &r.comm(), max_norm, p)), bits(expected),
                  "replicated");
      for (std::size_t i = 0; i < params.size(); ++i) {
        check_same_bits(params[i].grad(), single[i].grad(), "replicated gradient");
      }
      const auto source = make_clipped_parameters(dtype);
      auto slices = sharded_spans(source, r.rank(), r.size());
      check_equal(bits(clip_grad_norm_(slices, &r.comm(), max_norm, p)), bits(expected), "sharded");
      for (std::size_t i = 0; i < slices.size(); ++i) {
        check_same_bits(slices[i].leaf.grad(),
                        single[i].grad().flatten().narrow(0, slices[i].begin, slices[i].numel),
                        "sharded gradient");
      }
      // Some sharded, some replicated, in another order.
      const auto mixed_source = make_clipped_parameters(dtype);
      auto mixed = sharded_spans(mixed_source, r.rank(), r.size());
      const auto copies = replicated_spans(mixed_source);
      for (std::size_t i = 0; i < mixed.size(); i += 3) mixed[i] = copies[i];
      std::reverse(mixed.begin(), mixed.end());
      check_equal(bits(clip_grad_norm_(mixed, &r.comm(), max_norm, p)), bits(expected), "mixed");
    });
  }
}

/// A wrapper as DistributedDataParallel and FullyShardedDataParallel look from here.
struct Wrapped {
  std::vector<ShardSpan> spans;
  CommunicatorPtr comm;
  std::vector<ShardSpan> shard_spans() const { return spans; }
  const CommunicatorPtr& communicator() const { return comm; }
};

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl()
      : first(register_module("first", torch::nn::Linear(3, 4))),
        second(register_module("second", torch::nn::Linear(4, 2))) {}
  torch::nn::Linear first, second;
};
TORCH_MODULE(TwoLayers);

}  // namespace

TEST_CASE("clip_grad_norm_ agrees with torch's for every p") {
  for (const double p : {1.0, 2.0, 3.0, 0.5, kInfinity}) {
    for (const double max_norm : {1.0, 1e9}) {
      // torch's own throws on an empty gradient with p = inf.
      auto ours = make_clipped_parameters();
      auto stock = make_clipped_parameters();
      ours.erase(ours.begin() + 4);
      stock.erase(stock.begin() + 4);
      const double expected = torch::nn::utils::clip_grad_norm_(stock, max_norm, p);
      REQUIRE(clip_grad_norm_(ours, max_norm, p) == Approx(expected).epsilon(1e-5));
      for (std::size_t i = 0; i < ours.size(); ++i) {
        test::check_close(ours[i].grad(), stock[i].grad(), 1e-6);
      }
    }
  }
}

TEST_CASE("clip_grad_norm_: one value, bit for bit, in every strategy and world") {
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) check_all_strategies(at::kFloat, p, 0.75);
  check_all_strategies(at::kDouble, 2.0, 0.75);
  check_all_strategies(at::kBFloat16, 2.0, 0.75);
  check_all_strategies(at::kHalf, 1.0, 0.75);
  check_all_strategies(at::kFloat, 2.0, 1e9);  // Nothing to clip.
}

TEST_CASE("clip_grad_norm_: threads, order and layout do not change a bit") {
  const auto make = [] {
    auto generator = at::detail::createCPUGenerator(8);
    std::vector<at::Tensor> params;
    for (const std::int64_t rows : {701, 3, 211}) {
      auto param = torch::zeros({rows, 307}).requires_grad_();
      param.mutable_grad() = torch::randn({rows, 307}, generator, torch::TensorOptions());
      params.push_back(param);
    }
    return params;
  };
  const auto expected = [&] {
    const Threads scope(1);
    return bits(clip_grad_norm_(make(), 1.0));
  }();
  for (const int threads : {2, 3, 5}) {
    const Threads scope(threads);
    REQUIRE(bits(clip_grad_norm_(make(), 1.0)) == expected);
    auto params = make();
    std::reverse(params.begin(), params.end());
    params[0].mutable_grad() = params[0].grad().t().contiguous().t();
    REQUIRE(bits(clip_grad_norm_(params, 1.0)) == expected);
  }
}

TEST_CASE("clip_grad_norm_: the p = 2 norm is the exact sum of squares, rounded") {
  // Integers: the sum of squares is exact in int64, and so is the expected root.
  auto param = torch::zeros({4000}).requires_grad_();
  param.mutable_grad() = torch::arange(4000, at::kFloat);
  const double squares = 4000.0 * 3999.0 * 7999.0 / 6.0;
  REQUIRE(clip_grad_norm_(std::vector<at::Tensor>{param}, kInfinity) == std::sqrt(squares));
}

TEST_CASE("C033: the norm over shards of two dtypes, and a rank that has no gradients") {
  run_ranks(2, [](Rank& r) {
    for (const double p : {1.0, 2.0}) {
      const auto make = [&](at::ScalarType dtype, std::vector<float> whole) {
        // Each rank holds one block of 32; its first element is not zero.
        auto leaf = torch::zeros({32}, dtype).requires_grad_();
        auto grad = torch::zeros({32}, dtype);
        grad[0] = whole[static_cast<std::size_t>(r.rank())];
        leaf.mutable_grad() = grad;
        return ShardSpan{"w", {64}, 32 * r.rank(), 32, leaf, false};
      };
      std::vector<ShardSpan> spans = {make(at::kFloat, {3, 0}), make(at::kBFloat16, {0, 4})};
      check_equal(clip_grad_norm_(spans, &r.comm(), 1.0, p), p == 1 ? 7.0 : 5.0, "norm");
      if (p == 2 && r.rank() == 0) {
        check(std::abs(spans[0].leaf.grad()[0].item<float>() - 0.6f) < 1e-6f, "0.6");
      }
      if (p == 2 && r.rank() == 1) {
        check(std::abs(spans[1].leaf.grad()[0].item<float>() - 0.8f) < 4e-3f, "0.8");
      }
    }
    auto leaf = torch::zeros({r.rank() == 0 ? 32 : 0}).requires_grad_();
    if (r.rank() == 0) leaf.mutable_grad() = torch::full({32}, 2.0);
    std::vector<ShardSpan> spans = {{"w", {32}, 32 * r.rank(), leaf.numel(), leaf, false}};
    check_equal(clip_grad_norm_(spans, &r.comm(), 1.0), std::sqrt(128.0), "one rank only");
    spans.clear();
    check_equal(clip_grad_norm_(spans, &r.comm(), 1.0), 0.0, "nobody has any");
  });
}

TEST_CASE("clip_grad_norm_ takes wrapped models, modules and holders") {
  TwoLayers model;
  for (auto& param : model->parameters()) param.mutable_grad() = torch::ones_like(param);
  const double expected = std::sqrt(3 * 4 + 4 + 4 * 2 + 2);
  REQUIRE(clip_grad_norm_(model, 100.0) == expected);
  REQUIRE(clip_grad_norm_(*model, 100.0) == expected);
  const std::shared_ptr<torch::nn::Module> shared = model.ptr();
  REQUIRE(clip_grad_norm_(shared, 100.0) == expected);
  REQUIRE(clip_grad_norm_(model->parameters(), 100.0) == expected);
  run_ranks(2, [&](Rank& r) {
    Wrapped wrapped{replicated_spans(model->parameters()), r.comm_ptr()};
    check_equal(clip_grad_norm_(wrapped, 100.0), expected, "wrapped");
    const auto& constant = wrapped;
    check_equal(clip_grad_norm_(constant, 100.0, 1.0), 26.0, "const wrapped");
  });
}

TEST_CASE("clip_grad_norm_ counts a tensor that is listed twice once") {
  auto param = torch::zeros({2}).requires_grad_();
  param.mutable_grad() = torch::tensor({3.0f, 4.0f});
  REQUIRE(clip_grad_norm_(std::vector<at::Tensor>{param, param}, 1.0) == 5.0);
  REQUIRE(param.grad()[0].item<float>() == Approx(0.6));
}

TEST_CASE("clip_grad_norm_: what is not finite is returned, or refused on all ranks") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
    for (const double bad : {kInfinity, -kInfinity, nan}) {
      run_ranks(3, [&](Rank& r) {
        const auto make = [&] {
          auto params = make_clipped_parameters();
          params[7].grad()[128][16] = bad;  // In the last block: one rank alone holds it.
          return params;
        };
        const auto source = make();
        auto spans = sharded_spans(source, r.rank(), r.size());
        const auto before = spans[5].leaf.grad().clone();
        check_throws(ErrorKind::kInvalidArgument, "cannot be clipped",
                     [&] { clip_grad_norm_(spans, &r.comm(), 1.0, p, true); });
        check_same_bits(spans[5].leaf.grad(), before, "unscaled");
        const double norm = clip_grad_norm_(spans, &r.comm(), 1.0, p);
        check(std::isnan(bad) ? std::isnan(norm) : norm == kInfinity, "norm");
        const auto& scaled = spans[5].leaf.grad();
        check(std::isnan(bad) ? scaled.isnan().all().item<bool>() : scaled.eq(0).all().item<bool>(),
              "scaled by 0 or nan");
      });
    }
  }
}

TEST_CASE("clip_grad_norm_ refuses what it cannot do right") {
  auto param = torch::zeros({4}).requires_grad_();
  const std::vector<at::Tensor> params = {param};
  param.mutable_grad() = torch::ones({4});
  check_throws(ErrorKind::kInvalidArgument, "p is 0", [&] { clip_grad_norm_(params, 1.0, 0.0); });
  check_throws(ErrorKind::kInvalidArgument, "p is nan",
               [&] { clip_grad_norm_(params, 1.0, std::nan("")); });
  check_throws(ErrorKind::kInvalidArgument, "max_norm is -1",
               [&] { clip_grad_norm_(params, -1.0); });
  param.mutable_grad() = torch::ones({4}).to_sparse();
  check_throws(ErrorKind::kInvalidArgument, "dense", [&] { clip_grad_norm_(params, 1.0); });
  const std::vector<ShardSpan> badly_cut = {{"w", {64}, 5, 4, torch::zeros({4}), false}};
  check_throws(ErrorKind::kInvalidArgument, "[5, 9) of 64",
               [&] { clip_grad_norm_(badly_cut, nullptr, 1.0); });
}

TEST_CASE("clip_grad_norm_: ranks that disagree get one error, not different norms") {
  for (const double p : {2.0, kInfinity}) {
    run_ranks(3, [&](Rank& r) {
      auto param = torch::zeros({4}).requires_grad_();
      if (r.rank() != 1) param.mutable_grad() = torch::ones({4});
      const auto spans = replicated_spans({param});
      check_throws(ErrorKind::kMismatch, "which replicated parameters",
                   [&] { clip_grad_norm_(spans, &r.comm(), 1.0, p); });
    });
  }
  // A gradient that one rank cannot clip: nobody waits for it, nobody scales.
  for (const double p : {2.0, kInfinity}) {
    run_ranks(3, [&](Rank& r) {
      auto leaf = torch::zeros({32}).requires_grad_();
      leaf.mutable_grad() = torch::ones({32});
      if (r.rank() == 2) leaf.mutable_grad() = torch::ones({32}).to_sparse();
      const std::vector<ShardSpan> spans = {{"w", {96}, 32 * r.rank(), 32, leaf, false}};
      check_throws(r.rank() == 2 ? ErrorKind::kInvalidArgument : ErrorKind::kMismatch,
                   r.rank() == 2 ? "gradient of 'w'" : "another rank",
                   [&] { clip_grad_norm_(spans, &r.comm(), 1.0, p); });
      if (r.rank() != 2) check(leaf.grad().eq(1).all().item<bool>(), "unscaled");
    });
  }
  REQUIRE_THROWS_WITH(run_ranks(2,
                                [](Rank& r) {
                                  clip_grad_norm_(std::span<const ShardSpan>(), &r.comm(),
                                                  1.0 + r.rank());
                                }),
                      Catch::Contains("max_norm=1") && Catch::Contains("max_norm=2"));
}
