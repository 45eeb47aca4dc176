// ZeRO stage 1 against DDP with the same optimizer: the bits, the state each rank keeps, misuse.
#include "convoy/ddp/zero.h"

#include "convoy/comm/run_ranks.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace convoy::test {
namespace {

constexpr int kZeroSteps = 4;

std::vector<at::Tensor> values_at_end(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : parameters) values.push_back(parameter.detach().clone());
  return values;
}

// Trains with `step` after each pair of backwards, the first of them under no_sync.
template <class Ddp, class Step>
void train_pairs(Ddp& ddp, int rank, const Step& step) {
  for (int i = 0; i < kZeroSteps; ++i) {
    {
      const auto pause = ddp.no_sync();
      loss_of(ddp(batch_of(rank, 2 * i, 5)), rank, 2 * i).backward();
    }
    loss_of(ddp(batch_of(rank, 2 * i + 1, 5)), rank, 2 * i + 1).backward();
    step(i);
  }
}

torch::optim::SGDOptions sgd_options() { return torch::optim::SGDOptions(0.05).momentum(0.9); }
torch::optim::AdamOptions adam_options() { return torch::optim::AdamOptions(0.01); }

template <class Optimizer, class Options>
void check_zero_equals_ddp(const Options& options, int world, bool set_to_none) {
  run_ranks(world, [&](Rank& rank) {
    at::set_num_threads(1);
    auto plain = seeded<OddNet>();
    DistributedDataParallel plain_ddp(plain, rank.comm_ptr());
    Optimizer plain_optimizer(plain->parameters(), options);
    train_pairs(plain_ddp, rank.rank(), [&](int) {
      plain_optimizer.step();
      plain_optimizer.zero_grad(set_to_none);
    });

    auto model = seeded<OddNet>();
    DistributedDataParallel ddp(model, rank.comm_ptr());
    ZeroRedundancyOptimizer<Optimizer> zero(ddp, options);
    train_pairs(ddp, rank.rank(), [&](int) {
      zero.step();
      zero.zero_grad(set_to_none);
    });
    const auto expected = values_at_end(plain->parameters());
    const auto actual = values_at_end(model->parameters());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      check_same_bits(actual[i], expected[i], concat("parameter ", i));
    }
  });
}

std::int64_t state_numel(torch::optim::Optimizer& optimizer) {
  std::int64_t numel = 0;
  for (auto& [parameter, state] : optimizer.state()) {
    numel += static_cast<torch::optim::AdamParamState&>(*state).exp_avg().numel();
  }
  return numel;
}

}  // namespace

TEST_CASE("ZeRO-1 equals DDP in bits at worlds 1 to 5") {
  const bool set_to_none = GENERATE(true, false);
  for (int world = 1; world <= 5; ++world) {
    check_zero_equals_ddp<torch::optim::SGD>(sgd_options(), world, set_to_none);
    check_zero_equals_ddp<torch::optim::Adam>(adam_options(), world, set_to_none);
  }
}

TEST_CASE("ZeRO-1: every element is stepped on one rank, in groups of any size") {
  for (const std::int64_t group_bytes : {1, 300, 1 << 20}) {
    run_ranks(3, [&](Rank& rank) {
      auto model = seeded<OddNet>();
      DistributedDataParallel ddp(model, rank.comm_ptr());
      const auto before = values_at_end(model->parameters());
      ddp::ZeroShards shards(ddp.replica(), group_bytes);
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < before.size(); ++i) {
        check_same_bits(parameters[i].detach(), before[i], "moving changes no value");
      }
      const at::NoGradGuard no_grad;
      for (const ShardSpan& span : shards.spans()) span.leaf.add_(1);
      shards.gather();
      for (std::size_t i = 0; i < before.size(); ++i) {
        check_same_bits(parameters[i].detach(), before[i] + 1, "each element once");
      }
    });
  }
}

TEST_CASE("ZeRO-1: the optimizer's state is divided, and leaves keep their dimensions") {
  run_ranks(4, [](Rank& rank) {
    torch::nn::Linear model = under_seed(5, [] { return torch::nn::Linear(64, 64); });
    DistributedDataParallel ddp(model, rank.comm_ptr());
    ZeroRedundancyOptimizer<torch::optim::Adam> zero(ddp, adam_options());
    ddp(batch_of(rank.rank(), 0, 64)).sum().backward();
    zero.step();
    auto numel = at::tensor({state_numel(zero.optimizer())}, at::kLong);
    check(numel.item<std::int64_t>() < 64 * 65 / 3, "about a quarter of the state");
    rank.comm().all_reduce(numel)->wait();
    check_equal(numel.item<std::int64_t>(), std::int64_t{64 * 65}, "state of all ranks");
    for (const ShardSpan& span : zero.shard_spans()) {
      if (span.name == "weight") check_equal(span.leaf.dim(), std::int64_t{2}, "dimensions");
      check(!span.replicated, "spans are parts");
    }
  });
}

TEST_CASE("ZeRO-1: frozen and unused parameters stay, gradients are dropped with the leaves'") {
  run_ranks(2, [](Rank& rank) {
    auto model = seeded<OddNet>();
    const auto named = model->named_parameters();
    named["first.weight"].set_requires_grad(false);
    const auto frozen = named["first.weight"].detach().clone();
    DistributedDataParallel ddp(model, rank.comm_ptr());
    ZeroRedundancyOptimizer<torch::optim::SGD> zero(ddp, sgd_options());
    loss_of(ddp(batch_of(rank.rank(), 0, 5)), rank.rank(), 0).backward();
    zero.step();
    zero.zero_grad();
    check_same_bits(named["first.weight"], frozen, "the frozen parameter");
    for (const auto& parameter : model->parameters()) {
      check(!parameter.grad().defined(), "no gradient is left");
    }
    for (const ShardSpan& span : zero.shard_spans()) {
      check(!span.leaf.grad().defined(), "no leaf has a gradient");
    }
    const auto before = values_at_end(model->parameters());
    zero.step();
    const auto after = values_at_end(model->parameters());
    for (std::size_t i = 0; i < before.size(); ++i) {
      check_same_bits(after[i], before[i], "a step without gradients");
    }
  });
}

TEST_CASE("ZeRO-1: a backward through a graph from before the step is torch's own error") {
  run_ranks(2, [](Rank& rank) {
    torch::nn::Sequential model(torch::nn::Linear(5, 6), torch::nn::Linear(6, 3));
    DistributedDataParallel ddp(model, rank.comm_ptr());
    ZeroRedundancyOptimizer<torch::optim::SGD> zero(ddp, sgd_options());
    const auto old = ddp(batch_of(rank.rank(), 0, 5)).sum();
    ddp(batch_of(rank.rank(), 1, 5)).sum().backward();
    zero.step();
    bool threw = false;
    try {
      const auto pause = ddp.no_sync();
      old.backward();
    } catch (const c10::Error& error) {
      threw =
          std::string(error.what()).find("modified by an inplace operation") != std::string::npos;
    }
    check(threw, "the step was not noticed");
  });
}

namespace {

class ThrowingSgd : public torch::optim::SGD {
 public:
  ThrowingSgd(std::vector<at::Tensor> parameters, bool throws)
      : SGD(std::move(parameters), sgd_options()), throws_(throws) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (throws_) throw std::runtime_error("no step today");
    return SGD::step(closure);
  }

 private:
  bool throws_;
};

}  // namespace

TEST_CASE("ZeRO-1: an optimizer that throws on one rank is named on the others") {
  run_ranks(
      3,
      [](Rank& rank) {
        auto model = seeded<OddNet>();
        DistributedDataParallel ddp(model, rank.comm_ptr());
        ZeroRedundancyOptimizer<ThrowingSgd> zero(ddp, rank.rank() == 1);
        const auto backward = [&] {
          loss_of(ddp(batch_of(rank.rank(), 0, 5)), rank.rank(), 0).backward();
        };
        if (rank.rank() == 1) {
          backward();
          bool threw = false;
          try {
            zero.step();
          } catch (const std::runtime_error&) {
            threw = true;
          }
          check(threw, "the optimizer's own exception");
        } else {
          // It may come while this rank still waits for the end of its backward.
          check_throws(ErrorKind::kPeerLost, "no step today", [&] {
            backward();
            zero.step();
          });
        }
      },
      kShort);
}

TEST_CASE("ZeRO-1: a parameter that is not contiguous is refused by name") {
  run_ranks(2, [](Rank& rank) {
    torch::nn::Linear model(4, 6);
    model->weight.set_data(at::randn({4, 6}).t());
    DistributedDataParallel ddp(model, rank.comm_ptr());
    check_throws(ErrorKind::kInvalidArgument, "weight",
                 [&] { ZeroRedundancyOptimizer<torch::optim::SGD> zero(ddp, sgd_options()); });
  });
}

}  // namespace convoy::test
