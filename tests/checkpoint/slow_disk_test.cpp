// Disks that are slower than the time limit of collective calls, and savers that die.
#include "checkpoint/state_items.h"
#include "convoy/checkpoint/first_rank.h"
#include "fsdp/harness.h"
#include "support/catch.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace convoy {
namespace {

using namespace test;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = 500ms;
constexpr auto kSlow = 800ms;

CommunicatorOptions impatient() {
  CommunicatorOptions options;
  options.timeout = kTimeout;
  return options;
}

/// Slow once, so that the test is not.
class SlowSink final : public saving::StateSink {
 public:
  void write(const std::string& name, const void*, std::size_t) override {
    if (name == "v") std::this_thread::sleep_for(kSlow);
  }
};

class SlowSource final : public saving::StateSource {
 public:
  std::string describe() const override { return "the slow disk"; }
  std::vector<std::string> names() const override { return {"w"}; }
  std::optional<saving::TensorInfo> find(const std::string&) const override { return {}; }
  void read(const std::string& name, std::int64_t, void* out, std::size_t bytes) const override {
    if (name == "v") std::this_thread::sleep_for(kSlow);
    std::memset(out, 0, bytes);
  }
};

/// Two tensors, of which each rank holds its part.
std::vector<ShardSpan> spans_of(const Rank& rank) {
  std::vector<ShardSpan> spans;
  for (const char* name : {"v", "w"}) {
    spans.push_back({.name = name,
                     .sizes = {2 * rank.size()},
                     .begin = 2 * rank.rank(),
                     .numel = 2,
                     .leaf = torch::ones({2}),
                     .replicated = false});
  }
  return spans;
}

/// Returns when another thread has set the flag, or after a while.
void wait_until(const std::atomic<bool>& flag) {
  const auto begin = Clock::now();
  while (!flag && Clock::now() - begin < 5s) std::this_thread::sleep_for(5ms);
}

}  // namespace

TEST_CASE("slow disk: what rank 0 does alone may take longer than the time limit") {
  ranks(
      3,
      [](Rank& rank) {
        saving::on_first_rank(&rank.comm(), [] { std::this_thread::sleep_for(kSlow); });
        rank.comm().barrier()->wait();
      },
      impatient());
}

TEST_CASE("slow disk: pieces are written and read more slowly than the time limit") {
  ranks(
      2,
      [](Rank& rank) {
        const auto spans = spans_of(rank);
        const saving::SpanExchange exchange(spans, &rank.comm(), "test");
        std::vector<saving::StateItem> items;
        for (std::size_t i = 0; i < spans.size(); ++i) {
          items.push_back(saving::item_like_span(exchange, i, spans[i].name, spans[i].leaf));
        }
        saving::FirstRank first(&rank.comm());
        SlowSink sink;
        saving::send_items(items, exchange, first, [&](auto) { return &sink; });
        first.agree();
        const SlowSource source;
        saving::receive_items(items, exchange, first, &source);
        first.agree();
        check_equal(spans[1].leaf.sum().item<float>(), 0.0F, "read");
      },
      impatient());
}

TEST_CASE("slow disk: a disk that never answers ends in an error on the ranks that wait") {
  std::atomic<bool> given_up = false;
  ranks(
      2,
      [&](Rank& rank) {
        saving::FirstRank first(&rank.comm(), /*disk_limit=*/kSlow);
        const auto begin = Clock::now();
        first.run([&] { wait_until(given_up); });
        try {
          first.agree();
        } catch (const Error& error) {
          if (rank.rank() == 0) return;
          given_up = true;
          check(error.kind() == ErrorKind::kTimeout, error.what());
          check(Clock::now() - begin >= kSlow, "not before the limit for disks");
          return;
        }
        throw std::logic_error("agreed with a rank that did not answer");
      },
      impatient());
  CHECK(given_up);
}

TEST_CASE("slow disk: a saver that dies is noticed long before the limit for disks") {
  const auto begin = Clock::now();
  try {
    ranks(3, [](Rank& rank) {
      saving::FirstRank first(&rank.comm());
      if (rank.rank() == 0) throw std::runtime_error("the saver is gone");
      first.agree();
    });
    FAIL("nothing was thrown");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("the saver is gone") != std::string::npos);
  }
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("slow disk: rank 0 waits for the others no longer than any call") {
  std::atomic<bool> given_up = false;
  ranks(
      2,
      [&](Rank& rank) {
        const auto spans = spans_of(rank);
        const saving::SpanExchange exchange(spans, &rank.comm(), "test");
        if (rank.rank() == 1) wait_until(given_up);
        try {
          exchange.gather(0, spans[0].leaf, [](const void*, std::size_t) {});
        } catch (const Error&) {
          given_up = true;  // By rank 0 first: the other one waits for it.
          return;
        }
        throw std::logic_error("no error");
      },
      impatient());
  CHECK(given_up);
}

}  // namespace convoy
