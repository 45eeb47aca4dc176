// Ranks that do not mean the same operation: found before bytes move, told alike to all.
#include "comm/values.h"
#include "convoy/comm/run_ranks.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>

using namespace convoy;
using namespace convoy::test;

namespace {

// Rank `odd` runs `other`, the rest run `usual`. All must get one and the same error, which has all
// `parts`, and their next call must fail at once, quoting it.
void expect_mismatch(int world, int odd, const std::function<void(Rank&)>& usual,
                     const std::function<void(Rank&)>& other,
                     const std::vector<std::string>& parts) {
  std::mutex mutex;
  std::set<std::string> texts;
  run_ranks(world,
            [&](Rank& r) {
              const auto error = check_throws(ErrorKind::kMismatch, "the ranks disagree",
                                              [&] { r.rank() == odd ? other(r) : usual(r); });
              for (const auto& part : parts) {
                check(std::string(error.what()).find(part) != std::string::npos,
                      concat("'", part, "' is not in: ", error.what()));
              }
              check_equal(error.rank(), world > 2 ? odd : -1, "the rank to blame");
              check_throws(ErrorKind::kFailed, error.what(), [&] { r.comm().barrier(); });
              check(r.comm().failure().has_value(), "failure() is empty");
              const std::lock_guard lock(mutex);
              texts.insert(error.what());
            },
            {.timeout = std::chrono::seconds(20)});
  CHECK(texts.size() == 1);
}

at::Tensor ones(std::int64_t numel, at::ScalarType dtype = at::kFloat) {
  return at::ones({numel}, at::TensorOptions().dtype(dtype));
}

}  // namespace

TEST_CASE("C064: shapes that differ are named on every rank, and nothing is written") {
  const auto world = GENERATE(2, 4);
  run_ranks(
      world,
      [](Rank& r) {
        const std::int64_t rows = r.rank() == 0 ? 100 : 200;
        auto tensor = values_of(r.rank(), rows * 2560, at::kFloat).view({rows, 2560});
        const auto before = tensor.clone();
        const auto error = check_throws(ErrorKind::kMismatch, "256000 elements",
                                        [&] { r.comm().all_reduce(tensor)->wait(); });
        for (const auto* part : {"512000 elements", "all_reduce #1", "Float", "rank 0"}) {
          check(std::string(error.what()).find(part) != std::string::npos, error.what());
        }
        check_same_bits(tensor, before, "the tensor");
        const auto begin = std::chrono::steady_clock::now();
        check_throws(ErrorKind::kFailed, "has failed earlier", [&] { r.comm().barrier()->wait(); });
        check(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2), "not at once");
      },
      {.timeout = std::chrono::seconds(20)});
}

TEST_CASE("C064: one element against two, and types of equal bytes") {
  expect_mismatch(
      4, 0, [](Rank& r) { r.comm().all_reduce(ones(2))->wait(); },
      [](Rank& r) { r.comm().all_reduce(ones(1))->wait(); }, {"1 elements", "2 elements"});
  expect_mismatch(
      4, 2, [](Rank& r) { r.comm().all_reduce(ones(10))->wait(); },
      [](Rank& r) { r.comm().all_reduce(ones(20, at::kHalf))->wait(); },
      {"Float, 10 elements", "Half, 20 elements", "ranks 0, 1 and 3", "rank 2"});
}

TEST_CASE("every part of an operation's fingerprint is compared") {
  const auto all_reduce = [](Rank& r) { r.comm().all_reduce(ones(60))->wait(); };
  SECTION("kind") {
    expect_mismatch(3, 1, all_reduce, [](Rank& r) { r.comm().broadcast(ones(60), 0)->wait(); },
                    {"all_reduce #1", "broadcast #1 (root 0"});
  }
  SECTION("barrier") {
    expect_mismatch(3, 1, all_reduce, [](Rank& r) { r.comm().barrier()->wait(); }, {"barrier #1"});
  }
  SECTION("reduction") {
    expect_mismatch(3, 2, all_reduce,
                    [](Rank& r) { r.comm().all_reduce(ones(60), ReduceOp::kMax)->wait(); },
                    {"(sum,", "(max,"});
  }
  SECTION("root") {
    expect_mismatch(
        3, 0, [](Rank& r) { r.comm().broadcast(ones(60), 1)->wait(); },
        [](Rank& r) { r.comm().broadcast(ones(60), 2)->wait(); }, {"root 1", "root 2"});
  }
  SECTION("tag") {
    expect_mismatch(
        3, 0, [](Rank& r) { r.comm().all_reduce(ones(60), ReduceOp::kSum, {.tag = "a"})->wait(); },
        [](Rank& r) { r.comm().all_reduce(ones(60), ReduceOp::kSum, {.tag = "b"})->wait(); },
        {"'a'", "'b'"});
  }
  SECTION("a long tag that differs at its end") {
    const auto tag = std::string(200, 'x');
    expect_mismatch(
        3, 0,
        [&](Rank& r) { r.comm().all_reduce(ones(60), ReduceOp::kSum, {.tag = tag + "1"})->wait(); },
        [&](Rank& r) { r.comm().all_reduce(ones(60), ReduceOp::kSum, {.tag = tag + "2"})->wait(); },
        {"rest of the tag"});
  }
  SECTION("sizes of the parts of all_gather") {
    const auto gather = [](Rank& r, std::vector<std::int64_t> sizes) {
      std::vector<at::Tensor> outputs;
      for (const auto size : sizes) outputs.push_back(ones(size));
      r.comm().all_gather(outputs, outputs[static_cast<std::size_t>(r.rank())].clone())->wait();
    };
    expect_mismatch(
        3, 2,
        [&](Rank& r) {
          gather(r, {5, 6, 7});
        },
        [&](Rank& r) {
          gather(r, {6, 5, 7});
        },
        {"sizes of the parts"});
  }
  SECTION("size of an allocation") {
    expect_mismatch(
        3, 1, [](Rank& r) { r.comm().allocate(100, at::kFloat); },
        [](Rank& r) { r.comm().allocate(101, at::kFloat); },
        {"allocate #1", "100 elements", "101 elements"});
  }
  SECTION("kind of an allocation") {
    expect_mismatch(
        3, 1, [](Rank& r) { r.comm().allocate(100, at::kFloat); },
        [](Rank& r) { r.comm().allocate_shared(100, at::kFloat); }, {"shared"});
  }
}

TEST_CASE("C065: operations in another order are found, with tags also equal ones") {
  expect_mismatch(
      2, 1,
      [](Rank& r) {
        const auto a = r.comm().all_reduce(ones(10));
        const auto b = r.comm().broadcast(ones(10), 0);
        a->wait();
        b->wait();
      },
      [](Rank& r) {
        const auto b = r.comm().broadcast(ones(10), 0);
        const auto a = r.comm().all_reduce(ones(10));
        b->wait();
        a->wait();
      },
      {"operation #1"});
}

TEST_CASE("a skipped operation is found by the very next one") {
  const auto steps = [](Rank& r, bool skips) {
    for (int step = 1; step <= 5; ++step) {
      for (int bucket = 0; bucket < 3; ++bucket) {
        if (skips && step == 3 && bucket == 1) continue;
        r.comm()
            .all_reduce(
                ones(60), ReduceOp::kAvg,
                {.tag = "step " + std::to_string(step) + " bucket " + std::to_string(bucket)})
            ->wait();
      }
    }
  };
  expect_mismatch(
      3, 2, [&](Rank& r) { steps(r, false); }, [&](Rank& r) { steps(r, true); },
      {"operation #8", "'step 3 bucket 1'", "'step 3 bucket 2'"});
}

TEST_CASE("arguments that cannot work are refused before anybody is told") {
  run_ranks(2, [](Rank& r) {
    auto& comm = r.comm();
    const auto refuse = [](std::string_view part, const std::function<void()>& call) {
      check_throws(ErrorKind::kInvalidArgument, part, call);
    };
    refuse("undefined", [&] { comm.all_reduce(at::Tensor()); });
    refuse("avg of Long", [&] { comm.all_reduce(ones(3, at::kLong), ReduceOp::kAvg); });
    refuse("avg of Bool", [&] { comm.all_reduce(ones(3, at::kBool), ReduceOp::kAvg); });
    refuse("cannot reduce type ComplexFloat", [&] { comm.all_reduce(ones(3, at::kComplexFloat)); });
    refuse("cannot reduce type Short", [&] { comm.all_reduce(ones(3, at::kShort)); });
    refuse("share memory", [&] { comm.all_reduce(at::ones({1}).expand({5})); });
    refuse("sparse", [&] { comm.all_reduce(at::ones({2, 2}).to_sparse()); });
    refuse("2 times", [&] { comm.reduce_scatter(ones(3), ones(5)); });
    refuse("2 times", [&] { comm.all_gather(ones(5), ones(3)); });
    refuse("type", [&] { comm.all_gather(ones(6), ones(3, at::kDouble)); });
    refuse("3 outputs", [&] { comm.all_gather({ones(1), ones(1), ones(1)}, ones(1)); });
    refuse("root 2", [&] { comm.broadcast(ones(1), 2); });
    refuse("root -1", [&] { comm.broadcast(ones(1), -1); });
    refuse("timeout", [&] { comm.barrier({.timeout = std::chrono::nanoseconds(0)}); });
    refuse("-1 elements", [&] { comm.allocate(-1, at::kFloat); });
    refuse("meta", [&] { comm.all_reduce(at::empty({2}, at::TensorOptions().device(at::kMeta))); });
    // No number was used up, so the group goes on.
    auto tensor = ones(3);
    comm.all_reduce(tensor)->wait();
    check(tensor.eq(2).all().item<bool>(), "wrong sum");
  });
}
