// Memory is really saved: bytes that libtorch has allocated, counted.
#include "convoy/profile/counting_allocator.h"
#include "recompute/segments.h"
#include "support/catch.h"

namespace convoy::test {
namespace {

constexpr int kBlocks = 4;
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kInputBytes = kRows * 8 * 4;

struct Usage {
  std::int64_t kept;      ///< After forward.
  std::int64_t backward;  ///< The most in backward, gradients of parameters not counted.
};

Usage measure(profile::AllocationCounter& counter, bool checkpoints, double dropout) {
  std::vector<DropBlock> blocks;
  for (int i = 0; i < kBlocks; ++i) blocks.emplace_back(dropout);
  for (int warm = 0; warm < 2; ++warm) {  // So that gradients exist already.
    for (auto& block : blocks) block(rows_of(1, kRows)).sum().backward();
  }
  const auto x = rows_of(1, kRows);
  const auto before = counter.current();
  auto y = x;
  for (auto& block : blocks) y = checkpoints ? checkpoint(block, y) : block(y);
  y = y.sum();
  Usage usage{.kept = counter.current() - before, .backward = 0};
  counter.reset_peak();
  y.backward();
  usage.backward = counter.peak() - before;
  return usage;
}

}  // namespace

TEST_CASE("forward keeps the inputs of segments, backward one segment more") {
  const auto counter = profile::install_counting_allocator();
  torch::manual_seed(1);
  const Usage plain = measure(*counter, false, 0.1);
  const Usage saved = measure(*counter, true, 0.1);
  INFO("kept " << plain.kept << " and " << saved.kept << ", backward " << plain.backward << " and "
               << saved.backward << ", an input has " << kInputBytes);
  // Kept: the inputs of blocks 1 to 3, the last result, and the states of the generator.
  CHECK(saved.kept <= kBlocks * (kInputBytes + 6000) + 1000);
  CHECK(plain.kept > 6 * kBlocks * kInputBytes);
  // A block's graph and what its backward needs besides are there once in place of four times.
  CHECK(saved.backward < plain.backward / 2);
  // Without dropout nothing is kept of the generator.
  CHECK(measure(*counter, true, 0.0).kept <= kBlocks * kInputBytes + 1000);
}

}  // namespace convoy::test
