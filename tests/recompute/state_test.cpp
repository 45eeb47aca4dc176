// Checkpoints repeat what forward depended on: random numbers and autocast.
#include "recompute/segments.h"
#include "support/catch.h"

#include <ATen/autocast_mode.h>

#include <optional>

namespace convoy::test {
namespace {

/// bf16 autocast on the CPU, as torch.autocast("cpu", torch.bfloat16).
class Autocast {
 public:
  Autocast() : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, before_);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool before_;
};

enum class BackwardPlace { kOutside, kInside };

/// Three steps of three blocks; the head, which is used twice, is outside of
/// any checkpoint.
Traces train(bool checkpoints, bool autocast, BackwardPlace place) {
  torch::manual_seed(11);
  std::vector<DropBlock> blocks(3);
  torch::nn::Linear head(8, 8);
  Traces traces;
  for (int step = 0; step < 3; ++step) {
    torch::Tensor loss;
    std::optional<Autocast> scope;
    if (autocast) scope.emplace();
    auto x = rows_of(static_cast<std::uint64_t>(step)).requires_grad_();
    auto y = head(x);
    for (auto& block : blocks) y = checkpoints ? checkpoint(block, y) : block(y);
    loss = head(y).to(at::kFloat).square().mean();
    if (place == BackwardPlace::kOutside) scope.reset();
    loss.backward();
    scope.reset();
    traces.emplace_back("loss", loss.detach());
    traces.emplace_back("gradient of the input", x.grad());
    traces.emplace_back("generator", generator_state());
    for (auto& block : blocks) {
      trace_gradients(traces, *block);
      block->zero_grad();
    }
    trace_gradients(traces, *head);
    head->zero_grad();
  }
  return traces;
}

}  // namespace

TEST_CASE("C025: dropout under autocast with backward outside of the scope") {
  check_same_traces(train(true, true, BackwardPlace::kOutside),
                    train(false, true, BackwardPlace::kOutside));
}

TEST_CASE("dropout with backward inside the autocast scope and without autocast") {
  check_same_traces(train(true, true, BackwardPlace::kInside),
                    train(false, true, BackwardPlace::kInside));
  check_same_traces(train(true, false, BackwardPlace::kOutside),
                    train(false, false, BackwardPlace::kOutside));
}

TEST_CASE("autocast inside the function: casts of forward are not found again without a graph") {
  Traces traces[2];
  for (const bool checkpoints : {false, true}) {
    torch::manual_seed(5);
    torch::nn::Linear layer(8, 8);
    auto body = [layer](const torch::Tensor& x) mutable {
      const Autocast scope;
      return layer(layer(x));
    };
    const Autocast around;  // The cache lives as long as the outermost scope.
    auto x = rows_of(3).requires_grad_();
    auto y = checkpoints ? checkpoint(body, x) : body(x);
    // Outside of the checkpoint the same parameters, in the same scope.
    (y.to(at::kFloat).sum() + layer(x.detach()).to(at::kFloat).sum()).backward();
    trace_gradients(traces[checkpoints], *layer);
    REQUIRE(layer->weight.grad().abs().sum().item<float>() > 0);
  }
  for (std::size_t i = 0; i < traces[0].size(); ++i) {
    // Casts and sums of the two parts are ordered otherwise.
    check_close(traces[1][i].second, traces[0][i].second, 0.02, traces[0][i].first);
  }
}

TEST_CASE("without preserve_rng_state the recomputation goes on drawing") {
  torch::manual_seed(1);
  DropBlock block(0.5);
  auto x = rows_of(2).requires_grad_();
  auto y = checkpoint({.preserve_rng_state = false}, block, x);
  const auto before = generator_state();
  y.sum().backward();
  CHECK_FALSE(same_bits(before, generator_state()));
  // And a function that draws nothing leaves the generator where others have put it.
  torch::nn::Linear layer(8, 8);
  auto z = checkpoint(layer, x);
  torch::rand({3});
  const auto moved = generator_state();
  z.sum().backward();
  CHECK(same_bits(moved, generator_state()));
}

TEST_CASE("a generator used between forward and backward goes on undisturbed") {
  at::Tensor drawn[2];
  for (const bool checkpoints : {false, true}) {
    torch::manual_seed(21);
    DropBlock block(0.3);
    auto x = rows_of(2).requires_grad_();
    auto y = checkpoints ? checkpoint(block, x) : block(x);
    const auto first = torch::rand({4});
    y.sum().backward();
    drawn[checkpoints] = torch::cat({first, torch::rand({4}), x.grad().flatten()});
  }
  check_same_bits(drawn[1], drawn[0], "drawn after backward");
}

}  // namespace convoy::test
