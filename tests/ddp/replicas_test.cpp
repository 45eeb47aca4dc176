// Replicas over many steps: equal parameters on all ranks, and buffers that follow rank 0.
#include "convoy/base/check.h"
#include "convoy/base/hash.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "convoy/ddp/state_dict.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

std::uint64_t hash_of(const std::vector<at::Tensor>& tensors) {
  Hasher64 hasher;
  for (const auto& tensor : tensors) {
    hasher.update(tensor.detach().contiguous().const_data_ptr(), tensor.nbytes());
  }
  return hasher.digest();
}

/// Throws unless all ranks have the same bytes.
void check_equal_on_ranks(Rank& rank, const std::vector<at::Tensor>& tensors,
                          const std::string& what) {
  const auto mine = static_cast<std::int64_t>(hash_of(tensors));
  auto hashes = torch::zeros({rank.size()}, torch::kLong);
  rank.comm().all_gather(hashes, torch::full({1}, mine, torch::kLong))->wait();
  check(hashes.eq(mine).all().item<bool>(), concat(what, ": the ranks differ: ", hashes));
}

class NormNetImpl : public torch::nn::Module {
 public:
  NormNetImpl()
      : linear(register_module("linear", torch::nn::Linear(5, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(NormNet);

}  // namespace

TEST_CASE("C023: replicas are identical at each of 50 Adam steps, and in a second run") {
  constexpr int kSteps = 50;
  std::vector<std::vector<std::uint64_t>> runs;
  std::mutex mutex;
  for (int run = 0; run < 2; ++run) {
    run_ranks(
        4,
        [&](Rank& rank) {
          at::set_num_threads(1);
          auto model =
              seeded<OddNet>(static_cast<std::uint64_t>(rank.rank() == 0 ? 11 : 500 * run));
          DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 5e-4});
          torch::optim::Adam adam(model->parameters(), 0.01);
          std::vector<std::uint64_t> hashes;
          for (int step = 0; step < kSteps; ++step) {
            loss_of(ddp(batch_of(rank.rank(), step, 5)), rank.rank(), step).backward();
            adam.step();
            adam.zero_grad();
            check_equal_on_ranks(rank, model->parameters(), concat("step ", step));
            hashes.push_back(hash_of(model->parameters()));
          }
          check(hashes.front() != hashes.back(), "the parameters move");
          const std::lock_guard lock(mutex);
          if (rank.rank() == 0) runs.push_back(hashes);
        },
        kShort);
  }
  REQUIRE(runs.size() == 2);
  REQUIRE(runs[0] == runs[1]);
}

TEST_CASE("C013: parameters without elements, first, last and alone in a bucket") {
  for (const double cap : {1e-6, 25.0}) {
    for (const bool adam : {false, true}) {
      run_ranks(2, [&](Rank& rank) {
        class NetImpl : public torch::nn::Module {
         public:
          NetImpl()
              : first_(register_parameter("first", torch::zeros({0, 4}))),
                linear_(register_module("linear", torch::nn::Linear(5, 3))),
                last_(register_parameter("last", torch::zeros({3, 0}))) {}
          torch::Tensor forward(const torch::Tensor& x) {
            return linear_(x) + first_.sum() + last_.sum();
          }

         private:
          torch::Tensor first_;
          torch::nn::Linear linear_;
          torch::Tensor last_;
        };
        auto model = std::make_shared<NetImpl>();
        DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = cap});
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (adam) {
          optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), 0.1);
        } else {
          optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
        }
        for (int step = 0; step < 3; ++step) {
          ddp(batch_of(rank.rank(), step, 5)).sum().backward();
          // d(sum)/d(bias) is the batch size; d/d(weight) the column sums, averaged.
          const auto named = model->named_parameters();
          const auto mean = (batch_of(0, step, 5).sum(0) + batch_of(1, step, 5).sum(0)) / 2;
          check_close(named["linear.weight"].grad()[1], mean, 1e-6, "weight");
          check(named["first"].grad().sizes() == torch::IntArrayRef({0, 4}), "first");
          check(named["last"].grad().sizes() == torch::IntArrayRef({3, 0}), "last");
          optimizer->step();
          optimizer->zero_grad();
        }
        const auto saved = full_state_dict(ddp);
        if (rank.rank() == 0) {
          check(saved["first"].sizes() == torch::IntArrayRef({0, 4}), "saved");
          check_same_bits(saved["linear.weight"], model->named_parameters()["linear.weight"]);
        }
        auto other = std::make_shared<NetImpl>();
        DistributedDataParallel loaded(other, rank.comm_ptr());
        load_full_state_dict(loaded, saved);
        check_same_bits(other->named_parameters()["linear.weight"],
                        model->named_parameters()["linear.weight"], "loaded");
      });
    }
  }
}

TEST_CASE("C006: batch norm, two forwards, then one backward") {
  std::map<bool, std::vector<at::Tensor>> gradients;
  for (const bool copied : {true, false}) {
    std::mutex mutex;
    run_ranks(
        2,
        [&](Rank& rank) {
          auto model = seeded<NormNet>();
          DistributedDataParallel ddp(model, rank.comm_ptr(), {.broadcast_buffers = copied});
          std::vector<at::Tensor> mine;
          for (int step = 0; step < 3; ++step) {
            const auto fake = ddp(batch_of(rank.rank(), 2 * step, 5));
            if (copied && step > 0) {
              // The first forward after a synchronised backward began from rank 0's statistics.
              check(model->norm->num_batches_tracked.item<std::int64_t>() == 2 * step + 1, "count");
            }
            const auto real = ddp(batch_of(rank.rank(), 2 * step + 1, 5));
            (fake.pow(2) * 0.5 + real.pow(3)).sum().backward();
            for (auto& parameter : model->parameters()) {
              mine.push_back(parameter.grad().clone());
              parameter.mutable_grad().reset();
            }
          }
          const std::lock_guard lock(mutex);
          if (rank.rank() == 0) gradients[copied] = mine;
        },
        kShort);
  }
  REQUIRE(gradients[true].size() == gradients[false].size());
  for (std::size_t i = 0; i < gradients[true].size(); ++i) {
    REQUIRE(same_bits(gradients[true][i], gradients[false][i]));
  }
}

TEST_CASE("buffers follow rank 0 in training, and are left alone in evaluation and before a step") {
  run_ranks(
      3,
      [](Rank& rank) {
        auto model = seeded<NormNet>();
        DistributedDataParallel ddp(model, rank.comm_ptr());
        const auto broadcasts = [&] { return rank.comm().stats()[OpKind::kBroadcast].calls; };
        ddp(batch_of(rank.rank(), 0, 5)).pow(2).sum().backward();
        auto before = broadcasts();
        model->eval();
        if (rank.rank() == 1) ddp(batch_of(1, 1, 5));  // one rank alone may evaluate
        check_equal(broadcasts(), before, "evaluation");
        model->train();
        const auto expected = model->norm->running_mean.clone();
        rank.comm().broadcast(expected, 0)->wait();
        before = broadcasts();
        // Without samples of its own the forward leaves the copied statistics as they are.
        model->norm->options.momentum(0.0);
        ddp(batch_of(rank.rank(), 2, 5)).pow(2).sum();
        check_equal(broadcasts(), before + 1, "one message for all buffers");
        check_same_bits(model->norm->running_mean, expected, "rank 0's statistics");
        ddp(batch_of(rank.rank(), 3, 5)).pow(2).sum().backward();
        check_equal(broadcasts(), before + 2, "no buffers again, but the order of the buckets");
        {
          const auto pause = ddp.no_sync();
          ddp(batch_of(rank.rank(), 4, 5)).pow(2).sum().backward();
          check_equal(broadcasts(), before + 3, "buffers after it");
          ddp(batch_of(rank.rank(), 5, 5)).pow(2).sum().backward();
        }
        check_equal(broadcasts(), before + 3, "local backwards do not count");
      },
      kShort);
}

TEST_CASE("counters reset on one rank, and a forward that throws on one rank, change nothing") {
  run_ranks(
      2,
      [](Rank& rank) {
        class PickyImpl : public torch::nn::Module {
         public:
          PickyImpl() : net(register_module("net", NormNet())) {}
          torch::Tensor forward(const torch::Tensor& x) {
            if (x.size(0) == 0) throw std::invalid_argument("nothing to do");
            return net(x);
          }
          NormNet net;
        };
        auto model = std::make_shared<PickyImpl>();
        DistributedDataParallel ddp(model, rank.comm_ptr());
        for (int step = 0; step < 3; ++step) {
          if (rank.rank() == 1) {
            try {
              ddp(torch::zeros({0, 5}));
              check(false, "the forward throws");
            } catch (const std::invalid_argument&) {
            }
          }
          ddp(batch_of(rank.rank(), step, 5)).pow(3).sum().backward();
          if (rank.rank() == 0) ddp.reset_stats();
        }
        check_equal(ddp.stats().synchronised_backwards, std::int64_t{rank.rank() == 0 ? 0 : 3});
      },
      kShort);
}

TEST_CASE("a module in shared_ptr, Sequential and a reference return are wrapped as they are") {
  run_ranks(2, [](Rank& rank) {
    torch::nn::Sequential sequential(torch::nn::Linear(5, 4), torch::nn::Tanh(),
                                     torch::nn::Linear(4, 2));
    DistributedDataParallel ddp(sequential, rank.comm_ptr());
    ddp(batch_of(rank.rank(), 0, 5)).sum().backward();
    check_close(sequential->named_parameters()["2.bias"].grad(), torch::full({2}, 3.0F), 1e-6);

    class KeepsImpl : public torch::nn::Module {
     public:
      KeepsImpl() : w_(register_parameter("w", torch::ones({5}))) {}
      const torch::Tensor& forward(const torch::Tensor& x, double scale = 2) {
        return last_ = x.mv(w_) * scale;
      }

     private:
      torch::Tensor w_, last_;
    };
    auto keeps = std::make_shared<KeepsImpl>();
    DistributedDataParallel other(keeps, rank.comm_ptr());
    const torch::Tensor& output = other(batch_of(rank.rank(), 0, 5));
    check(&output == &other.module()->forward(batch_of(rank.rank(), 0, 5)), "a reference");
    other(batch_of(rank.rank(), 1, 5), 3.0).sum().backward();
    check(other.stats().synchronised_backwards == 1, "synchronised");
  });
}

TEST_CASE("a wrapper may go before, and gradients after it, and the communicator last") {
  run_ranks(2, [](Rank& rank) {
    auto model = seeded<OddNet>();
    torch::Tensor loss;
    {
      DistributedDataParallel ddp(model, rank.comm_ptr());
      ddp(batch_of(rank.rank(), 0, 5)).sum().backward();
      loss = ddp(batch_of(rank.rank(), 1, 5)).sum();
    }
    const auto bias = model->named_parameters()["last.bias"];
    check_close(bias.grad(), torch::full({3}, 3.0F), 1e-6, "gradient of the wrapper's time");
    loss.backward();  // the hooks are gone: this rank's own gradients
    check_close(bias.grad(), torch::full({3}, 6.0F), 1e-6, "a plain backward");
  });
}

}  // namespace convoy::test
