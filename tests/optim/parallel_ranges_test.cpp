// Ranges are covered once, cut where allowed, on several threads, and errors come back.
#include "optim/parallel_ranges.h"

#include "optim/threads.h"
#include "support/catch.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using namespace convoy::optim;
using convoy::test::Threads;

}  // namespace

TEST_CASE("parallel_ranges covers every element once and cuts at multiples of the alignment") {
  for (const int threads : {1, 2, 3, 7}) {
    const Threads scope(threads);
    for (const std::int64_t count : {0, 1, 31, 32, 33, 1000, 100003}) {
      std::vector<int> seen(static_cast<std::size_t>(count), 0);
      std::mutex mutex;
      int parts = 0;
      bool aligned = true;
      parallel_ranges(count, 32, 32, [&](std::int64_t begin, std::int64_t end) {
        const std::lock_guard lock(mutex);
        ++parts;
        aligned = aligned && begin % 32 == 0 && (end % 32 == 0 || end == count);
        for (auto i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      REQUIRE(aligned);
      REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      REQUIRE(parts <= threads);
      REQUIRE((parts >= 2) == (threads >= 2 && count >= 64));
    }
  }
}

TEST_CASE("parallel_ranges runs on as many threads as torch has") {
  const Threads scope(3);
  std::set<std::thread::id> ids;
  std::mutex mutex;
  parallel_ranges(300, 1, 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  REQUIRE(ids.size() == 3);
}

TEST_CASE("parallel_pieces covers arrays end to end, empty ones included") {
  for (const int threads : {1, 2, 5}) {
    const Threads scope(threads);
    const std::vector<std::int64_t> lengths = {0, 1, 40, 0, 1003, 7, 32, 5000, 0};
    std::vector<std::vector<int>> seen;
    for (const auto length : lengths) seen.emplace_back(static_cast<std::size_t>(length), 0);
    std::mutex mutex;
    bool aligned = true;
    parallel_pieces(lengths, 64, 32, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      aligned = aligned && begin % 32 == 0 && (end % 32 == 0 || end == lengths[i]) && begin < end;
      for (auto at = begin; at < end; ++at) ++seen[i][static_cast<std::size_t>(at)];
    });
    REQUIRE(aligned);
    for (const auto& array : seen) {
      REQUIRE(std::all_of(array.begin(), array.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("parallel_ranges brings an exception back to the caller") {
  for (const int threads : {1, 3}) {
    const Threads scope(threads);
    REQUIRE_THROWS_AS(parallel_ranges(1000, 1, 1,
                                      [](std::int64_t, std::int64_t end) {
                                        if (end == 1000) throw std::runtime_error("last");
                                      }),
                      std::runtime_error);
  }
}
