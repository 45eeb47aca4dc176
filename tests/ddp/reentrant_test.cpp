// Backwards inside backwards, as activation checkpointing runs them.
#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "convoy/recompute/checkpoint.h"
#include "ddp/models.h"
#include "ddp/stack.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace convoy::test {
namespace {

/// w * (w * x), each product in a checkpoint segment of its own or none in any.
class SquareImpl : public torch::nn::Module {
 public:
  explicit SquareImpl(bool checkpoints)
      : w(register_parameter("w", torch::tensor(2.0F))), checkpoints_(checkpoints) {}
  torch::Tensor forward(const torch::Tensor& x) { return run(run(x)); }
  torch::Tensor w;

 private:
  torch::Tensor run(const torch::Tensor& x) {
    const auto segment = [this](const torch::Tensor& y) { return w * y; };
    return checkpoints_ ? checkpoint(segment, x) : segment(x);
  }
  bool checkpoints_;
};

/// Uses w in a checkpoint segment and after it: w fires in the outer backward first.
class InAndOutImpl : public torch::nn::Module {
 public:
  InAndOutImpl()
      : v(register_parameter("v", torch::tensor(1.0F))),
        w(register_parameter("w", torch::tensor(2.0F))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return checkpoint([this](const torch::Tensor& y) { return w * y; }, x * v) * w;
  }
  torch::Tensor v, w;
};

}  // namespace

TEST_CASE("C024: a block used twice in checkpoint segments") {
  for (const bool checkpoints : {false, true}) {
    run_ranks(
        2,
        [&](Rank& rank) {
          auto model = std::make_shared<SquareImpl>(checkpoints);
          DistributedDataParallel ddp(model, rank.comm_ptr());
          for (int step = 0; step < 3; ++step) {
            // An input that needs no gradient, as data mostly.
            const auto x = torch::full({}, rank.rank() == 0 ? 1.0F : 3.0F);
            const auto before = all_reduces(rank);
            ddp(x).backward();
            check_equal(model->w.grad().item<float>(), 8.0F, "w.grad");
            check_equal(all_reduces(rank), before + 1, "reduced once");
            model->w.mutable_grad().reset();
          }
        },
        kShort);
  }
}

TEST_CASE("a parameter that fires again after its bucket was launched is averaged again") {
  run_ranks(
      2,
      [](Rank& rank) {
        auto model = std::make_shared<InAndOutImpl>();
        DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
        for (int step = 0; step < 3; ++step) {
          const auto x = torch::full({}, rank.rank() == 0 ? 1.0F : 3.0F).requires_grad_();
          const auto before = all_reduces(rank);
          ddp(x).backward();
          // y = w * w * v * x: d/dw = 2 w v x, d/dv = w w x.
          check_equal(model->w.grad().item<float>(), 8.0F, "w.grad");
          check_equal(model->v.grad().item<float>(), 8.0F, "v.grad");
          // In the first backward nobody knows that w fires twice; from then on it is waited for.
          check_equal(all_reduces(rank) - before, std::uint64_t{step == 0 ? 3U : 2U}, "operations");
          for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
        }
      },
      kShort);
}

TEST_CASE("checkpointed blocks give the bits of plain ones, and overlap from the second step on") {
  run_ranks(
      3,
      [](Rank& rank) {
        std::map<bool, std::vector<at::Tensor>> gradients;
        for (const bool checkpoints : {false, true}) {
          const auto model =
              under_seed(5, [&] { return std::make_shared<StackImpl>(checkpoints); });
          DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
          for (int step = 0; step < 3; ++step) {
            ddp.reset_stats();
            ddp(input_of(rank.rank(), step)).pow(2).sum().backward();
            const bool overlaps = ddp.stats().overlapped_bytes > 0;
            check_equal(overlaps, !checkpoints || step > 0, concat("overlap in step ", step));
            for (auto& parameter : model->parameters()) {
              gradients[checkpoints].push_back(parameter.grad().clone());
              parameter.mutable_grad().reset();
            }
          }
        }
        for (std::size_t i = 0; i < gradients[false].size(); ++i) {
          check_same_bits(gradients[true][i], gradients[false][i], concat("gradient ", i));
        }
      },
      kShort);
}

TEST_CASE("a checkpoint around the whole wrapper works") {
  run_ranks(
      2,
      [](Rank& rank) {
        Trip model;
        DistributedDataParallel ddp(model, rank.comm_ptr());
        const auto segment = [&](const torch::Tensor& x) { return ddp(x, false); };
        for (int step = 0; step < 3; ++step) {
          checkpoint(segment, input_of(rank.rank(), step)).sum().backward();
          check_close(model->named_parameters()["last.bias"].grad(), torch::full({3}, 3.0F), 1e-6);
          for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
        }
      },
      kShort);
}

TEST_CASE("inner backwards that bypass the wrapper's outputs are a named error") {
  run_ranks(
      2,
      [](Rank& rank) {
        // All in the block: the faster rank's error may reach the slower one while it still wraps.
        try {
          auto model = std::make_shared<SquareImpl>(true);
          DistributedDataParallel ddp(model, rank.comm_ptr());
          const auto x = torch::full({}, 1.0F).requires_grad_();
          const auto loss = model->forward(x);  // not through ddp
          loss.backward();
          check(false, "backward must fail");
        } catch (const Error& error) {
          check(std::string(error.what()).find("Call the wrapper") != std::string::npos,
                error.what());
        }
      },
      kShort);
}

TEST_CASE("outputs in tuples, maps, options and the user's own types begin the backward") {
  struct Own {
    torch::Tensor logits;
  };
  std::vector<at::Tensor> found;
  const auto a = torch::tensor(1), b = torch::tensor(2), c = torch::tensor(3);
  const auto visit = [&](const at::Tensor& tensor) { found.push_back(tensor); };
  torch::OrderedDict<std::string, torch::Tensor> dict;
  dict.insert("c", c);
  detail::for_each_tensor(std::make_tuple(a, std::vector<torch::Tensor>{b}, 7, std::string("x")),
                          visit);
  detail::for_each_tensor(dict, visit);
  detail::for_each_tensor(std::optional<std::pair<int, torch::Tensor>>({1, a}), visit);
  detail::for_each_tensor(std::map<std::string, torch::Tensor>{{"b", b}}, visit);
  detail::for_each_tensor(std::optional<torch::Tensor>(), visit);
  detail::for_each_tensor(Own{a}, visit);
  REQUIRE(found.size() == 5);
  const std::vector<at::Tensor> expected = {a, b, c, a, b};
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i].is_same(expected[i]));
}

}  // namespace convoy::test
