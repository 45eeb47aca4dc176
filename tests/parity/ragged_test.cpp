// Parameters with fewer elements than ranks: slices are empty, and nothing else is different.
#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/state_dict.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

struct RaggedNetImpl : torch::nn::Module {
  RaggedNetImpl()
      : matrix(register_parameter("matrix", torch::zeros({5, 3}))),
        vector(register_parameter("vector", torch::zeros({7}))),
        one(register_parameter("one", torch::zeros({1}))),
        scalar(register_parameter("scalar", torch::zeros({}))) {}
  torch::Tensor forward(torch::Tensor x) {
    return (torch::tanh(x.matmul(matrix)).sum() * one + vector.square().sum()) * (scalar + 1);
  }
  torch::Tensor matrix, vector, one, scalar;
};
using RaggedNet = Unit<RaggedNetImpl>;

RaggedNet make_ragged() {
  RaggedNet model;
  seed_parameters(*model, 2);
  return model;
}

/// Five clipped steps of `model`, whose gradients `backward(step)` makes; returns the norms' bits.
template <class Clipped, class Backward>
std::vector<std::uint64_t> train_ragged(Clipped& clipped, torch::optim::Optimizer& optimizer,
                                        const Backward& backward) {
  std::vector<std::uint64_t> norms;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    backward(step);
    norms.push_back(std::bit_cast<std::uint64_t>(clip_grad_norm_(clipped, 0.5)));
    optimizer.step();
  }
  return norms;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Rule rule,
                                                      const std::vector<at::Tensor>& parameters) {
  if (rule == Rule::kSgd) {
    return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }
  return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 0.05});
}

torch::Tensor loss_of_rank(RaggedNet& model, int rank, int step) {
  return model(torch::full({2, 5}, 0.1F * float(rank + 1) + 0.01F * float(step))).sum();
}

}  // namespace

TEST_CASE("C028: ragged sizes on four ranks, clipped, saved and loaded, equal DDP in bits") {
  constexpr int kWorld = 4;
  for (const auto rule : {Rule::kAdamW, Rule::kSgd}) {
    auto alone = make_ragged();
    const auto steps = optimizer_of(rule, alone->parameters());
    const auto norms = train_ragged(alone, *steps, [&](int step) {
      mean_gradients(alone->parameters(), kWorld,
                     [&](int rank) { loss_of_rank(alone, rank, step).backward(); });
    });
    run_ranks(
        kWorld,
        [&](Rank& r) {
          at::set_num_threads(1);
          auto model = make_ragged();
          DistributedDataParallel ddp(model, r.comm_ptr());
          const auto optimizer = optimizer_of(rule, model->parameters());
          const auto own = train_ragged(
              ddp, *optimizer, [&](int step) { loss_of_rank(model, r.rank(), step).backward(); });
          check(own == norms, "norms under DDP");
          for (const auto& item : model->named_parameters()) {
            check_same_bits(item.value(), alone->named_parameters()[item.key()], item.key());
          }
        },
        comm_options());
    for (const bool shared_gather : {true, false}) {
      run_ranks(
          kWorld,
          [&](Rank& r) {
            at::set_num_threads(1);
            auto model = make_ragged();
            FullyShardedDataParallel fsdp(model, r.comm_ptr(), {.shared_gather = shared_gather});
            const auto optimizer = optimizer_of(rule, model->parameters());
            const auto own = train_ragged(fsdp, *optimizer, [&](int step) {
              loss_of_rank(model, r.rank(), step).backward();
            });
            check(own == norms, "norms under FSDP");
            const auto held = model->parameters();
            const auto filled = std::count_if(held.begin(), held.end(),
                                              [](const auto& leaf) { return leaf.numel() > 0; });
            check_equal(static_cast<std::int64_t>(optimizer->state().size()),
                        static_cast<std::int64_t>(filled), "entries of empty slices");
            const auto saved = full_state_dict(fsdp);
            for (const auto& item : saved) {
              check_same_bits(item.value(), alone->named_parameters()[item.key()], item.key());
            }
            auto other = make_ragged();
            FullyShardedDataParallel loaded(other, r.comm_ptr(), {.shared_gather = shared_gather});
            load_full_state_dict(loaded, saved);
            const auto again = full_state_dict(loaded);
            for (const auto& item : again) {
              check_same_bits(item.value(), saved[item.key()], item.key());
            }
          },
          comm_options());
    }
  }
}
