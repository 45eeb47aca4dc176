// Backwards that are not plain: failing, inside others, with create_graph, and what overlaps.
#include "convoy/base/check.h"
#include "convoy/base/trace.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "ddp/checkpoint.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace convoy::test {
namespace {

const CommunicatorOptions kShort{.timeout = std::chrono::seconds(20)};

std::uint64_t all_reduces(Rank& rank) { return rank.comm().stats()[OpKind::kAllReduce].calls; }

/// Throws in backward when told to.
class TripImpl : public torch::nn::Module {
 public:
  TripImpl()
      : first_(register_module("first", torch::nn::Linear(5, 7))),
        last_(register_module("last", torch::nn::Linear(7, 3))) {}
  torch::Tensor forward(const torch::Tensor& x, bool trips) {
    auto middle = first_(x);
    if (trips) {
      middle.register_hook([](const torch::Tensor&) { throw std::runtime_error("tripped"); });
    }
    return last_(middle);
  }

 private:
  torch::nn::Linear first_, last_;
};
TORCH_MODULE(Trip);

/// w * (w * x), each product in a checkpoint segment of its own or none in any.
class SquareImpl : public torch::nn::Module {
 public:
  explicit SquareImpl(bool checkpoints)
      : w(register_parameter("w", torch::tensor(2.0F))),
        checkpoints_(checkpoints),
        segment_([this](const torch::Tensor& x) { return w * x; }) {}
  torch::Tensor forward(const torch::Tensor& x) { return run(run(x)); }
  torch::Tensor w;

 private:
  torch::Tensor run(const torch::Tensor& x) {
    return checkpoints_ ? Checkpoint::run(x, segment_) : segment_(x);
  }
  bool checkpoints_;
  Segment segment_;
};

/// Uses w in a checkpoint segment and after it: w fires in the outer backward first.
class InAndOutImpl : public torch::nn::Module {
 public:
  InAndOutImpl()
      : v(register_parameter("v", torch::tensor(1.0F))),
        w(register_parameter("w", torch::tensor(2.0F))),
        segment_([this](const torch::Tensor& x) { return w * x; }) {}
  torch::Tensor forward(const torch::Tensor& x) { return Checkpoint::run(x * v, segment_) * w; }
  torch::Tensor v, w;

 private:
  Segment segment_;
};

/// A stack of blocks that can be checkpointed each.
class StackImpl : public torch::nn::Module {
 public:
  explicit StackImpl(bool checkpoints) : checkpoints_(checkpoints) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(register_module("layer_" + std::to_string(i), torch::nn::Linear(5, 5)));
      segments_.push_back([layer = layers_.back()](const torch::Tensor& x) mutable {
        return torch::tanh(layer(x));
      });
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const Segment& segment : segments_) {
      x = checkpoints_ ? Checkpoint::run(x, segment) : segment(x);
    }
    return x;
  }

 private:
  bool checkpoints_;
  std::vector<torch::nn::Linear> layers_;
  std::vector<Segment> segments_;
};

torch::Tensor input_of(int rank, int step) { return batch_of(rank, step, 5).requires_grad_(); }

}  // namespace

TEST_CASE("C020: a backward that throws on one rank fails the wrapper on all, by name") {
  run_ranks(
      2,
      [](Rank& rank) {
        DistributedDataParallel ddp(Trip(), rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
        const auto step = [&](int number, bool trips) {
          ddp(batch_of(rank.rank(), number, 5), trips).sum().backward();
        };
        step(0, false);
        const auto forward_again = [&] { step(2, false); };
        if (rank.rank() == 1) {
          try {
            step(1, true);
            check(false, "the hook throws");
          } catch (const std::runtime_error& error) {
            check(std::string(error.what()) == "tripped", error.what());
          }
          const auto error = check_throws(ErrorKind::kFailed, "failed state", forward_again);
          check(std::string(error.what()).find("make_communicator") != std::string::npos,
                error.what());
        } else {
          try {
            step(1, false);
            check(false, "rank 1 fails");
          } catch (const Error& error) {
            const std::string text = error.what();
            check(text.find("rank 1") != std::string::npos, text);
            check(text.find("bucket ") != std::string::npos, text);
            check(error.rank() == 1, text);
          }
          check_throws(ErrorKind::kFailed, "rank 1", forward_again);
        }
      },
      kShort);
}

TEST_CASE("a backward that throws before it reaches the wrapper is found at the next one") {
  run_ranks(
      2,
      [](Rank& rank) {
        DistributedDataParallel ddp(Trip(), rank.comm_ptr());
        const auto step = [&](int number, bool trips) {
          auto loss = ddp(batch_of(rank.rank(), number, 5), false).sum();
          if (trips) {
            loss.register_hook([](const torch::Tensor&) { throw std::runtime_error("tripped"); });
          }
          loss.backward();
        };
        step(0, false);
        if (rank.rank() == 1) {
          try {
            step(1, true);
          } catch (const std::runtime_error&) {
          }
        }
        // Step 1 of rank 0 must not be averaged with step 2 of rank 1.
        check_throws(ErrorKind::kMismatch, "after 2 forwards", [&] { step(2, false); });
      },
      kShort);
}

TEST_CASE("C021: a rank that has fewer batches is named on the ranks that have more") {
  run_ranks(
      2,
      [](Rank& rank) {
        DistributedDataParallel ddp(Trip(), rank.comm_ptr());
        const auto step = [&](int number) {
          ddp(batch_of(rank.rank(), number, 5), false).sum().backward();
        };
        for (int i = 0; i < 4; ++i) step(i);
        if (rank.rank() == 1) return;
        try {
          step(4);
          check(false, "rank 1 has left");
        } catch (const Error& error) {
          check(std::string(error.what()).find("rank 1") != std::string::npos, error.what());
        }
      },
      kShort);
}

TEST_CASE("one rank alone, and a local backward, may throw and go on") {
  run_ranks(1, [](Rank& rank) {
    Trip model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    CHECK_THROWS_AS(ddp(batch_of(0, 0, 5), true).sum().backward(), std::runtime_error);
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    ddp(batch_of(0, 1, 5), false).sum().backward();
    check_close(model->named_parameters()["last.bias"].grad(), torch::full({3}, 3.0F), 1e-6);
  });
  run_ranks(2, [](Rank& rank) {
    Trip model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    if (rank.rank() == 1) {
      const auto pause = ddp.no_sync();
      try {
        ddp(batch_of(1, 0, 5), true).sum().backward();
        check(false, "the hook throws");
      } catch (const std::runtime_error&) {
      }
    }
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    ddp(batch_of(rank.rank(), 1, 5), false).sum().backward();
    check_close(model->named_parameters()["last.bias"].grad(), torch::full({3}, 3.0F), 1e-6);
  });
}

TEST_CASE("C004: create_graph is one clear error, and nothing is lost by it") {
  run_ranks(
      2,
      [](Rank& rank) {
        Trip model;
        DistributedDataParallel ddp(model, rank.comm_ptr());
        const auto loss = ddp(batch_of(rank.rank(), 0, 5), false).pow(2).sum();
        check_throws(ErrorKind::kMisuse, "create_graph",
                     [&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); });
        for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
        loss.backward();
        check(ddp.stats().synchronised_backwards == 1, "a plain backward works");
      },
      kShort);
}

TEST_CASE("autograd::grad leaves the wrapper alone, and a penalty on input gradients trains") {
  run_ranks(2, [](Rank& rank) {
    auto model = seeded<Trip>();
    DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
    const auto penalty = [&](auto& forward, int source) {
      const auto x = input_of(source, 0);
      const auto y = forward(x, false).pow(3).sum();
      const auto slope = torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true);
      return y + slope[0].pow(2).sum();
    };
    const auto before = all_reduces(rank);
    auto plain = seeded<Trip>();
    auto expected = [&](int source) {
      for (auto& parameter : plain->parameters()) parameter.mutable_grad().reset();
      penalty(plain, source).backward();
      std::vector<at::Tensor> out;
      for (auto& parameter : plain->parameters()) out.push_back(parameter.grad().clone());
      return out;
    };
    const auto loss = penalty(ddp, rank.rank());
    check_equal(all_reduces(rank), before, "autograd::grad does not communicate");
    loss.backward();
    const auto first = expected(0), second = expected(1);
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      check_same_bits(parameters[i].grad(), (first[i] + second[i]) / 2, concat("gradient ", i));
    }
  });
}

TEST_CASE("C024: a block used twice in checkpoint segments") {
  for (const bool checkpoints : {false, true}) {
    run_ranks(
        2,
        [&](Rank& rank) {
          auto model = std::make_shared<SquareImpl>(checkpoints);
          DistributedDataParallel ddp(model, rank.comm_ptr());
          for (int step = 0; step < 3; ++step) {
            const auto x = torch::full({}, rank.rank() == 0 ? 1.0F : 3.0F).requires_grad_();
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
          torch::manual_seed(5);
          auto model = std::make_shared<StackImpl>(checkpoints);
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
          check_close(gradients[true][i], gradients[false][i], 1e-6, concat("gradient ", i));
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
        const Segment segment = [&](const torch::Tensor& x) { return ddp(x, false); };
        for (int step = 0; step < 3; ++step) {
          Checkpoint::run(input_of(rank.rank(), step), segment).sum().backward();
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
        auto model = std::make_shared<SquareImpl>(true);
        DistributedDataParallel ddp(model, rank.comm_ptr());
        const auto x = torch::full({}, 1.0F).requires_grad_();
        const auto loss = model->forward(x);  // not through ddp
        try {
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

TEST_CASE("a thread that joins a running backward is refused") {
  run_ranks(1, [](Rank& rank) {
    Trip model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    auto loss = ddp(batch_of(0, 0, 5), false).sum();
    std::string text;
    auto x = input_of(0, 1);
    auto other = ddp(x, false).sum();
    // The hook runs in the middle of the first backward.
    auto outer = (loss * torch::ones({}).requires_grad_());
    auto y = ddp(input_of(0, 2), false);
    y.register_hook([&](const torch::Tensor&) {
      std::thread([&] {
        try {
          other.backward();
        } catch (const Error& error) {
          text = error.what();
        }
      }).join();
    });
    const auto sum = y.sum() + outer;
    sum.backward();
    check(text.find("two threads") != std::string::npos, "text: " + text);
  });
}

TEST_CASE("the first bucket is in flight while backward still runs") {
  const auto sink = std::make_shared<trace::MemorySink>();
  constexpr int kRanks = 2;
  constexpr int kSteps = 3;
  run_ranks(kRanks,
            [](Rank& rank) {
              auto model = std::make_shared<StackImpl>(false);
              DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
              for (int step = 0; step < kSteps; ++step) {
                ddp(input_of(rank.rank(), step)).sum().backward();
                rank.comm().barrier()->wait();
              }
              const auto stats = ddp.stats();
              // Eight buckets of two lines or less; all but the last are launched early.
              check(stats.overlapped_bytes > stats.reduced_bytes / 2, "most bytes overlap");
              check(stats.overlapped_bytes < stats.reduced_bytes, "the last bucket cannot");
              check_equal(stats.reduced_bytes, kSteps * ddp.bucket_bytes(),
                          "every byte once a step");
            },
            {.timeout = std::chrono::seconds(20), .trace = sink});
  std::vector<trace::Event> backwards, firsts;
  for (const auto& event : sink->events()) {
    if (event.name == "backward") backwards.push_back(event);
    const bool first = event.detail.find("bucket 0 (layer_3.") != std::string::npos;
    // Waiting for it is another span, of category "wait".
    if (event.name == "all_reduce" && event.category == "comm" && first) firsts.push_back(event);
  }
  REQUIRE(backwards.size() == kRanks * kSteps);
  REQUIRE(firsts.size() == kRanks * kSteps);
  // The barrier keeps the steps apart, so that the i-th pair of each belongs to step i.
  const auto by_begin = [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; };
  std::sort(backwards.begin(), backwards.end(), by_begin);
  std::sort(firsts.begin(), firsts.end(), by_begin);
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    CHECK(backwards[i].category == "compute");
    const auto latest_end =
        std::max(backwards[i / kRanks * kRanks].end_ns, backwards[i / kRanks * kRanks + 1].end_ns);
    CHECK(firsts[i].begin_ns < latest_end);
  }
}

TEST_CASE("buckets are rebuilt once, in rank 0's order of arrival") {
  // Runs its layers against the order of registration, which is what buckets start with.
  class BackToFrontImpl : public torch::nn::Module {
   public:
    BackToFrontImpl()
        : last(register_module("last", torch::nn::Linear(5, 5))),
          first(register_module("first", torch::nn::Linear(5, 5))) {}
    torch::Tensor forward(const torch::Tensor& x) { return last(first(x)); }
    torch::nn::Linear last, first;
  };
  constexpr int kSteps = 4;
  const auto sink = std::make_shared<trace::MemorySink>();
  run_ranks(2,
            [](Rank& rank) {
              auto model = std::make_shared<BackToFrontImpl>();
              DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
              for (int step = 0; step < kSteps; ++step) {
                // Gradients that are kept over the rebuild keep their values: d(sum)/d(bias) is 3 a
                // step.
                ddp(batch_of(rank.rank(), step, 5)).sum().backward();
                check_close(model->last->bias.grad(), torch::full({5}, 3.0 * (step + 1)), 1e-6,
                            "kept");
              }
            },
            {.timeout = std::chrono::seconds(20), .trace = sink});
  std::map<std::string, int> times;
  for (const auto& event : sink->events()) {
    if (event.category != "comm") continue;
    if (event.name == "broadcast" && event.detail == "bucket order") ++times["order"];
    if (event.name == "all_reduce") ++times[event.detail.substr(0, event.detail.find('.'))];
  }
  CHECK(times["order"] == 2);
  CHECK(times["bucket 0 (first"] == 2);
  CHECK(times["bucket 0 (last"] == 2 * (kSteps - 1));
}

}  // namespace convoy::test
