// Text, split, order, batches and the loader: what is trained, and in which order.
#include "convoy/base/hash.h"
#include "convoy/data/batch_plan.h"
#include "convoy/data/prefetch.h"
#include "convoy/data/split.h"
#include "convoy/data/text.h"
#include "convoy/data/token_windows.h"
#include "convoy/data/unigram.h"
#include "convoy/data/window_order.h"
#include "support/catch.h"
#include "train_gpt/scratch.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

using convoy::Deadline;
using convoy::Error;
using convoy::testing::make_text;
using convoy::testing::Scratch;
using namespace convoy::data;
using namespace std::chrono_literals;

namespace {

std::string bytes_of(const Text& text, std::int64_t begin, std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  text.read(begin, bytes);
  return {bytes.begin(), bytes.end()};
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("text: files and folders become one sequence, sorted by path") {
  const Scratch scratch;
  scratch.write("folder/b.txt", "second ");
  scratch.write("folder/a/z.txt", "first ");
  scratch.write("folder/empty.txt", "");
  scratch.write("folder/.hidden", "no ");
  scratch.write("folder/.git/config", "no ");
  const std::string last = scratch.write("0.txt", "third");
  const std::vector<std::string> paths{(scratch.path() / "folder").native(), last};
  const Text text = Text::open(paths);
  REQUIRE(text.size() == 18);
  REQUIRE(bytes_of(text, 0, 18) == "first second third");
  REQUIRE(text.files().size() == 3);
  for (std::int64_t begin = 0; begin <= 18; ++begin) {
    for (std::int64_t end = begin; end <= 18; ++end) {
      REQUIRE(bytes_of(text, begin, end - begin) ==
              std::string("first second third")
                  .substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    }
  }
  REQUIRE_THROWS_AS(bytes_of(text, 12, 7), Error);
  REQUIRE(text.xxh3() == convoy::hash64("first second third"));
}

TEST_CASE("text: what cannot be read is named") {
  const Scratch scratch;
  const auto open = [](const std::string& path) {
    return message_of([&path] { Text::open(std::vector{path}); });
  };
  const std::string missing = (scratch.path() / "missing.txt").native();
  REQUIRE(open(missing) == "cannot read the data '" + missing + "': no such file or folder");
  REQUIRE(open("/dev/null") ==
          "cannot read the data '/dev/null': it is neither a file nor a folder");
  const std::string empty = scratch.write("empty.txt", "");
  REQUIRE(open(empty) == "there is no text in the data: '" + empty + "' holds not one byte");
}

TEST_CASE("split: every byte is trained on or held out, none both") {
  for (const std::int64_t bytes : {20, 21, 99, 100, 101, 1000, 1013, 4096}) {
    for (const std::int64_t window : {1, 2, 7, 10}) {
      for (const std::int64_t wanted : {1, 2, 3, 64}) {
        if (bytes < 2 * window) continue;
        const TextSplit split(bytes, window, wanted);
        CAPTURE(bytes, window, wanted);
        REQUIRE(split.validation_windows() >= 1);
        REQUIRE(split.validation_windows() <= wanted);
        REQUIRE(split.validation_windows() <= std::max<std::int64_t>(1, bytes / (10 * window)));
        std::vector<int> uses(static_cast<std::size_t>(bytes), 0);
        for (std::int64_t i = 0; i < split.validation_windows(); ++i) {
          for (std::int64_t k = 0; k < window; ++k) {
            ++uses.at(static_cast<std::size_t>(split.validation_begin(i) + k));
          }
        }
        std::int64_t before = -1;
        for (std::int64_t t = 0; t < split.train_bytes(); ++t) {
          const auto extent = split.train_extent(t);
          REQUIRE(extent.begin > before);
          REQUIRE(extent.bytes >= 1);
          before = extent.begin;
          ++uses.at(static_cast<std::size_t>(extent.begin));
          const bool goes_on =
              t + 1 < split.train_bytes() && split.train_extent(t + 1).begin == extent.begin + 1;
          REQUIRE((extent.bytes > 1) == goes_on);
        }
        REQUIRE(std::all_of(uses.begin(), uses.end(), [](int count) { return count == 1; }));
      }
    }
  }
}

TEST_CASE("split: a text that is too small is refused with the bytes it needs") {
  REQUIRE(message_of([] { TextSplit(65, 33, 4); }) ==
          "the text is too small: it has 65 bytes, and one window to train on and one to validate "
          "on need 66; give more text or a shorter --seq");
  REQUIRE_NOTHROW(TextSplit(66, 33, 4));
}

TEST_CASE("window order: each epoch trains every window once, in another order") {
  for (const std::int64_t bytes : {11, 21, 31, 1000, 4097}) {
    const WindowOrder order(bytes, 10, 42);
    const std::int64_t count = order.windows();
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::int64_t> begins;
      epochs.emplace_back();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = order.begin(static_cast<std::uint64_t>(epoch * count + i));
        REQUIRE(begin >= 0);
        REQUIRE(begin + 11 <= bytes);
        begins.insert(begin);
        epochs.back().push_back(begin);
      }
      REQUIRE(static_cast<std::int64_t>(begins.size()) == count);
      REQUIRE(*begins.rbegin() - *begins.begin() == (count - 1) * 10);
    }
    if (count > 10) REQUIRE(epochs[0] != epochs[1]);
  }
  REQUIRE(WindowOrder(4097, 10, 1).begin(0) != WindowOrder(4097, 10, 2).begin(0));
  REQUIRE_THROWS_AS(WindowOrder(10, 10, 1), Error);
}

TEST_CASE("batch plan: ranks take disjoint contiguous parts of the global batch") {
  for (const int world : {1, 2, 3, 4, 5}) {
    const BatchPlan plan = plan_batch(60, (60 / world) % 2 == 0 ? 2 : 1, world);
    std::vector<std::int64_t> windows;
    for (int rank = 0; rank < world; ++rank) {
      for (std::int64_t row = 0; row < plan.rows_per_rank; ++row) {
        windows.push_back(plan.first_window(3, rank) + row);
      }
    }
    std::vector<std::int64_t> expected(60);
    std::iota(expected.begin(), expected.end(), 120);
    REQUIRE(windows == expected);
    REQUIRE(plan.micro_steps * plan.micro_batch == plan.rows_per_rank);
  }
  REQUIRE(message_of([] { plan_batch(10, 4, 2); }) ==
          "--global-batch 10 does not divide into 2 ranks with micro-batches of 4; it must be a "
          "multiple of 8, for example 16");
}

TEST_CASE("evaluation plan: every window once, at any world size") {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::int64_t windows : {0, 1, 5, 16, 17}) {
      for (const std::int64_t micro : {1, 3, 8}) {
        const EvaluationPlan plan = plan_evaluation(windows, micro, world);
        std::multiset<std::int64_t> seen;
        for (int rank = 0; rank < world; ++rank) {
          for (std::int64_t step = 0; step < plan.micro_steps; ++step) {
            for (std::int64_t row = 0; row < micro; ++row) {
              const std::int64_t window = plan.window(step, rank, row);
              if (window >= 0) seen.insert(window);
            }
          }
        }
        REQUIRE(static_cast<std::int64_t>(seen.size()) == windows);
        for (std::int64_t window = 0; window < windows; ++window) REQUIRE(seen.count(window) == 1);
      }
    }
  }
}

TEST_CASE("token windows: targets follow inputs, and held-out bytes are never trained on") {
  const Scratch scratch;
  // Each byte tells its place modulo 251, so that a window shows where it comes from.
  std::string bytes(5000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 251);
  const Text text = Text::open(std::vector{scratch.write("a", bytes)});
  const TextSplit split(text.size(), 17, 8);
  const WindowOrder order(split.train_bytes(), 16, 7);
  const TokenWindows windows(text, split, order);
  const auto batch = windows.train(5, 3);
  REQUIRE(batch.inputs.sizes() == at::IntArrayRef({3, 16}));
  REQUIRE(at::equal(batch.inputs.narrow(1, 1, 15), batch.targets.narrow(1, 0, 15)));
  for (std::int64_t row = 0; row < 3; ++row) {
    const std::int64_t begin = order.begin(static_cast<std::uint64_t>(5 + row));
    for (std::int64_t k = 0; k < 16; ++k) {
      REQUIRE(batch.inputs[row][k].item<std::int64_t>() ==
              split.train_extent(begin + k).begin % 251);
      REQUIRE(batch.targets[row][k].item<std::int64_t>() ==
              split.train_extent(begin + k + 1).begin % 251);
    }
  }
  const auto held_out = windows.validation(std::vector<std::int64_t>{7, -1, 0});
  REQUIRE(at::equal(held_out.weights, at::tensor({1.0F, 0.0F, 1.0F})));
  REQUIRE(held_out.inputs[0][0].item<std::int64_t>() == split.validation_begin(7) % 251);
  REQUIRE(held_out.targets[2][15].item<std::int64_t>() == (split.validation_begin(0) + 16) % 251);
}

TEST_CASE("unigram entropy: of known distributions, in nats") {
  ByteHistogram none;
  REQUIRE(none.entropy_nats() == 0);
  ByteHistogram fair;
  fair.add(std::vector<std::uint8_t>{0, 1, 2, 255});
  REQUIRE(fair.entropy_nats() == Approx(std::log(4.0)).epsilon(1e-12));
  ByteHistogram skewed;
  skewed.add(std::vector<std::uint8_t>{7, 7, 7, 9});
  REQUIRE(skewed.entropy_nats() ==
          Approx(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)).epsilon(1e-12));
}

TEST_CASE("prefetcher: items come in order, ahead by no more than its depth") {
  std::atomic<std::int64_t> made = 0;
  Prefetcher<std::int64_t> loader(
      [&made](std::int64_t index) {
        made = index + 1;
        return index * index;
      },
      100, 3);
  for (std::int64_t taken = 0; taken < 100; ++taken) {
    REQUIRE(made <= taken + 4);  // Three that wait, and the one in hand.
    REQUIRE(loader.next(Deadline::after(5s)) == taken * taken);
  }
  REQUIRE(message_of([&loader] { loader.next(Deadline::after(5s)); }) ==
          "all 100 items have been taken");
}

TEST_CASE("prefetcher: an exception comes out in its place, again and again") {
  Prefetcher<int> loader(
      [](std::int64_t index) {
        if (index == 2) throw Error(convoy::ErrorKind::kSystem, "disk on fire");
        return static_cast<int>(index);
      },
      10);
  REQUIRE(loader.next(Deadline::after(5s)) == 0);
  REQUIRE(loader.next(Deadline::after(5s)) == 1);
  REQUIRE(message_of([&loader] { loader.next(Deadline::after(5s)); }) == "disk on fire");
  REQUIRE(message_of([&loader] { loader.next(Deadline::after(5s)); }) == "disk on fire");
}

TEST_CASE("prefetcher: its destructor does not wait for what nobody takes") {
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < 50; ++round) {
    Prefetcher<int> loader([](std::int64_t) { return 1; }, 1'000'000);
    if (round % 2 == 0) loader.next(Deadline::after(5s));
  }
  REQUIRE(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("prefetcher: a loader that is stuck ends in an error, not in a hang") {
  std::atomic<bool> release = false;
  Prefetcher<int> loader(
      [&release](std::int64_t) {
        while (!release) std::this_thread::sleep_for(1ms);
        return 1;
      },
      1);
  REQUIRE(message_of([&loader] { loader.next(Deadline::after(50ms)); }).find("did not deliver") !=
          std::string::npos);
  release = true;
  REQUIRE(loader.next(Deadline::after(5s)) == 1);
}
