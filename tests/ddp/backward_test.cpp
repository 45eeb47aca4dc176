// Backwards that fail, differentiate twice, or run in two threads.
#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace convoy::test {
TEST_CASE("C020: a backward that throws on one rank fails the wrapper on all, by name") {
  std::barrier together(2);
  run_ranks(
      2,
      [&](Rank& rank) {
        DistributedDataParallel ddp(Trip(), rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
        const auto step = [&](int number, bool trips) {
          ddp(batch_of(rank.rank(), number, 5), trips).sum().backward();
        };
        step(0, false);
        // Without the communicator: its failure must not reach a rank that is still in step 0.
        together.arrive_and_wait();
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
  std::barrier together(2);
  run_ranks(
      2,
      [&](Rank& rank) {
        DistributedDataParallel ddp(Trip(), rank.comm_ptr());
        const auto step = [&](int number) {
          ddp(batch_of(rank.rank(), number, 5), false).sum().backward();
        };
        for (int i = 0; i < 4; ++i) step(i);
        together.arrive_and_wait();
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

}  // namespace convoy::test
