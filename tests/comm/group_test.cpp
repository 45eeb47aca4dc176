// Many operations in flight, several groups, threads, ends of groups, and what is counted.
#include "comm/random_sequence.h"
#include "comm/values.h"
#include "convoy/comm/run_ranks.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace convoy;
using namespace convoy::test;
using namespace std::chrono_literals;

TEST_CASE("hundreds of operations in flight at once") {
  const auto world = GENERATE(2, 3);
  run_ranks(world, [](Rank& r) {
    constexpr int kCount = 300;  // More than the ring of headers holds.
    const auto arena = r.comm().allocate(kCount * 5003, at::kFloat);
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t numel = i % 7 == 0 ? 5003 : i + 1;
      auto tensor = i % 3 == 0 ? at::empty({numel}) : arena.narrow(0, i * 5003, numel);
      tensor.copy_(values_of(r.rank(), numel, at::kFloat, i));
      tensors.push_back(tensor);
      works.push_back(r.comm().all_reduce(tensor, ReduceOp::kSum, {.tag = concat("op ", i)}));
    }
    // Waited for in another order than started, and in another one on each rank.
    for (int i = 0; i < kCount; ++i) {
      const auto which = static_cast<std::size_t>((i * 7 + r.rank() * 13) % kCount);
      works[which]->wait();
      check(works[which]->is_completed(), "waited for, but not complete");
      const auto numel = tensors[which].numel();
      check_same_bits(
          tensors[which],
          reduced_values(r.size(), numel, at::kFloat, ReduceOp::kSum, static_cast<int>(which)),
          concat("operation ", which));
    }
  });
}

TEST_CASE("works that nobody waits for are completed all the same") {
  run_ranks(3, [](Rank& r) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(values_of(r.rank(), 30011, at::kFloat, i));
      r.comm().all_reduce(tensors.back());
    }
    auto strided = at::zeros({50, 2});
    strided.select(1, 0).fill_(r.rank());
    r.comm().all_reduce(strided.select(1, 0));
    r.comm().barrier()->wait();
    while (r.comm().stats()[OpKind::kAllReduce].calls < 21) r.comm().poll();
    for (int i = 0; i < 20; ++i) {
      check_same_bits(tensors[static_cast<std::size_t>(i)],
                      reduced_values(3, 30011, at::kFloat, ReduceOp::kSum, i));
    }
    check(strided.select(1, 0).eq(3).all().item<bool>(), "not written back");
  });
}

TEST_CASE("random sequences over threads") {
  const auto world = GENERATE(2, 3, 4, 5);
  const auto seed = GENERATE(1U, 2U);
  run_ranks(world, [seed](Rank& r) { run_random_sequence(r.comm(), seed, 150); });
}

TEST_CASE("C078: two threads on one communicator keep to one order") {
  run_ranks(2, [](Rank& r) {
    // Each thread's operations have tags, so a wrong pairing of the two ranks would be an error;
    // the threads take turns.
    std::atomic<int> turn = 0;
    const auto work = [&](int me) {
      for (int i = 0; i < 100; ++i) {
        while (turn.load() % 2 != me) std::this_thread::yield();
        auto tensor = at::full({100}, static_cast<float>(i + me));
        const auto flight =
            r.comm().all_reduce(tensor, ReduceOp::kSum, {.tag = concat(me, " ", i)});
        turn.fetch_add(1);
        flight->wait();
        check(tensor.eq(2.0F * static_cast<float>(i + me)).all().item<bool>(), "wrong sum");
      }
    };
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        work(1);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    work(0);
    other.join();
    if (failure) std::rethrow_exception(failure);
  });
}

TEST_CASE("C078: two threads with a communicator each, in any relative order") {
  run_ranks(2, [](Rank& r) {
    const auto second = make_communicator(r.job(), {.timeout = 60s, .name = "second"});
    const auto work = [&](Communicator& comm, int seed) {
      auto tensor = at::zeros({17});
      for (int i = 0; i < 1000; ++i) {
        tensor.fill_(static_cast<float>(i * 3 + comm.rank() + seed));
        comm.all_reduce(tensor)->wait();
        check(tensor.eq(static_cast<float>(2 * (i * 3 + seed) + 1)).all().item<bool>(),
              "wrong sum");
      }
    };
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        work(*second, 5);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    work(r.comm(), 9);
    other.join();
    if (failure) std::rethrow_exception(failure);
  });
}

TEST_CASE("C077: groups of threads are made and ended in many rounds") {
  run_ranks(3, [](Rank& r) {
    for (int round = 0; round < 20; ++round) {
      const auto comm = make_communicator(r.job(), {.timeout = 30s, .name = "again"});
      auto tensor = values_of(r.rank(), 333, at::kFloat, round);
      comm->all_reduce(tensor)->wait();
      check_same_bits(tensor, reduced_values(3, 333, at::kFloat, ReduceOp::kSum, round));
      std::this_thread::sleep_for((r.rank() * 7 + round * 5) % 20 * 1ms);
    }
  });
}

TEST_CASE("an exception of one rank ends the others, and is the one that is rethrown") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(run_ranks(4,
                              [](Rank& r) {
                                r.comm().barrier()->wait();
                                if (r.rank() == 2) throw std::runtime_error("the cause");
                                r.comm().barrier()->wait();
                              }),
                    "the cause");
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}

TEST_CASE("C052: a thread that returns early is named by the others") {
  std::atomic<int> named = 0;
  run_ranks(4, [&](Rank& r) {
    if (r.rank() == 3) return;
    const auto error = check_throws(ErrorKind::kPeerLost, "has left the group",
                                    [&] { r.comm().barrier({.tag = "last"})->wait(); });
    check_equal(error.rank(), 3, "the rank to blame");
    ++named;
  });
  CHECK(named == 3);
}

TEST_CASE("C080: a barrier that one rank does not enter lets nobody pass") {
  std::atomic<int> passed = 0;
  run_ranks(4,
            [&](Rank& r) {
              if (r.rank() == 2) {
                while (!r.comm().failure()) std::this_thread::sleep_for(5ms);
                return;
              }
              const auto error = check_throws(ErrorKind::kTimeout, "rank 2", [&] {
                r.comm().barrier()->wait();
                ++passed;
              });
              check_equal(error.rank(), 2, "the rank to blame");
            },
            {.timeout = 1s});
  CHECK(passed == 0);
}

TEST_CASE("the time limit of one call goes before the group's") {
  run_ranks(2, [](Rank& r) {
    const auto begin = std::chrono::steady_clock::now();
    if (r.rank() == 0) {
      check_throws(ErrorKind::kTimeout, "barrier #1 'short'",
                   [&] { r.comm().barrier({.tag = "short", .timeout = 300ms})->wait(); });
    } else {
      while (!r.comm().failure()) std::this_thread::sleep_for(5ms);
      check_throws(ErrorKind::kTimeout, "'short'", [&] { r.comm().barrier(); });
    }
    check(std::chrono::steady_clock::now() - begin < 10s, "took long");
  });
}

TEST_CASE("abort fails the group on all ranks with its text") {
  run_ranks(3, [](Rank& r) {
    // kMisuse in an operation that was under way, kFailed in one that began too late.
    std::string text;
    try {
      const auto flight = r.comm().barrier();
      if (r.rank() == 1) r.comm().abort(Error(ErrorKind::kMisuse, "enough of this", 1));
      flight->wait();
      for (;;) r.comm().barrier()->wait();
    } catch (const Error& error) {
      text = error.what();
    }
    check(text.find("enough of this") != std::string::npos, text);
    check_throws(ErrorKind::kFailed, "enough of this", [&] { r.comm().barrier(); });
    check_equal(r.comm().failure()->rank(), 1, "the rank to blame");
  });
}

TEST_CASE("the job's first failure ends every wait") {
  run_ranks(2, [](Rank& r) {
    const auto comm = make_communicator(r.job(), {.name = "other"});
    if (r.rank() == 0) {
      std::this_thread::sleep_for(100ms);
      r.job().session()->report_failure(Error(ErrorKind::kPeerLost, "the disk is full", 0));
      return;
    }
    check_throws(ErrorKind::kPeerLost, "the disk is full", [&] { comm->barrier()->wait(); });
  });
}

TEST_CASE("statistics count calls, bytes and time") {
  run_ranks(2, [](Rank& r) {
    auto arena = r.comm().allocate(1 << 20, at::kFloat);
    auto ordinary = at::zeros({1 << 20});
    r.comm().barrier()->wait();
    r.comm().reset_stats();
    r.comm().all_reduce(arena)->wait();
    auto stats = r.comm().stats()[OpKind::kAllReduce];
    check_equal(stats.calls, 1U, "calls");
    check_equal(stats.payload_bytes, std::uint64_t{4} << 20, "payload");
    check_equal(stats.copied_bytes, std::uint64_t{4} << 20, "this rank stores its half twice");
    check_equal(stats.wire_bytes, 0U, "wire");
    r.comm().all_reduce(ordinary)->wait();
    stats = r.comm().stats()[OpKind::kAllReduce];
    check_equal(stats.calls, 2U, "calls");
    check_equal(stats.copied_bytes, std::uint64_t{12} << 20, "to the stage, and the result");
    r.comm().reset_stats();
    check(r.comm().stats().empty(), "not reset");
    if (r.rank() == 1) std::this_thread::sleep_for(300ms);
    r.comm().barrier()->wait();
    const auto waited = r.comm().stats()[OpKind::kBarrier].wait_s;
    check(r.rank() == 1 || (waited > 0.2 && waited < 10), concat("waited ", waited, " s"));
  });
}

TEST_CASE("operations and waits show in the trace") {
  run_ranks(2, [](Rank& r) {
    const auto sink = std::make_shared<trace::MemorySink>();
    {
      const auto comm = make_communicator(r.job(), {.name = "traced", .trace = sink});
      if (r.rank() == 1) std::this_thread::sleep_for(100ms);
      auto tensor = at::zeros({100});
      comm->all_reduce(tensor, ReduceOp::kSum, {.tag = "bucket 3"})->wait();
    }
    bool has_op = false;
    bool has_wait = false;
    for (const auto& event : sink->events()) {
      if (event.name != "all_reduce" || event.detail != "bucket 3") continue;
      check(event.end_ns >= event.begin_ns, "ends before it begins");
      has_op |= event.category == "comm" && event.bytes == 400;
      has_wait |= event.category == "wait";
    }
    check(has_op, "no span of the operation");
    check(has_wait || r.rank() == 1, "no span of the wait");
  });
}
