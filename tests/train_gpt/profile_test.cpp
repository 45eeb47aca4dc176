// Memory accounting and overlap.
#include "convoy/profile/counting_allocator.h"
#include "convoy/profile/memory_report.h"
#include "convoy/profile/overlap.h"
#include "convoy/profile/process_memory.h"
#include "support/catch.h"

#include <torch/torch.h>

using namespace convoy::profile;

TEST_CASE("counting allocator: every byte asked for, and the peak") {
  const auto counter = install_counting_allocator();
  const auto before = counter->current();
  {
    const auto a = at::empty({1000}, at::kFloat);
    REQUIRE(reinterpret_cast<std::uintptr_t>(a.data_ptr()) % 64 == 0);
    REQUIRE(counter->current() == before + 4000);
    {
      const auto b = at::zeros({3}, at::kDouble);
      REQUIRE(counter->current() == before + 4024);
    }
    REQUIRE(counter->current() == before + 4000);
    REQUIRE(counter->peak() >= before + 4024);
    counter->reset_peak();
    REQUIRE(counter->peak() == before + 4000);
    const auto empty = at::empty({0});
    REQUIRE(counter->current() == before + 4000);
    // Outlives this scope's counting: freed by the thread that ends last.
    std::thread([copy = a.clone()]() mutable { copy.reset(); }).join();
  }
  REQUIRE(counter->current() == before);
  auto grown = at::ones({4});
  grown.resize_({1 << 20});
  REQUIRE(grown.narrow(0, 0, 4).sum().item<float>() == 4);
}

TEST_CASE("process memory: read from the system's own texts") {
  const auto parsed = parse_process_memory(
      "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t1024 kB\nRssAnon:\t1 kB\nRssFile:\t 512 kB\n"
      "RssShmem:\t  16 kB\n",
      "00400000-7fff rollup\nRss:  1024 kB\nPss:   700 kB\nPss_Dirty: 3 kB\n");
  REQUIRE(parsed.rss == 1024 * 1024);
  REQUIRE(parsed.rss_peak == 2048 * 1024);
  REQUIRE(parsed.files == 512 * 1024);
  REQUIRE(parsed.shared == 16 * 1024);
  REQUIRE(parsed.pss == 700 * 1024);
  const auto unknown = parse_process_memory("", "");
  REQUIRE_FALSE(unknown.rss);
  REQUIRE_FALSE(unknown.pss);
  const auto mine = read_process_memory();
  REQUIRE(mine.rss.value() > 0);
  REQUIRE(mine.rss_peak.value() >= mine.rss.value());
  REQUIRE(mine.pss.value() > 0);
}

TEST_CASE("memory report: the rest is what no part explains, unknown where the system is silent") {
  MemoryReport report{
      .process = {.rss = 900, .rss_peak = 1000, .files = 100, .shared = 0, .pss = 5},
      .parameters = 10,
      .gradients = 20,
      .optimizer = 30,
      .buffers = 40,
      .activations_peak = 50};
  REQUIRE(report.other() == 750);
  report.process.files.reset();
  REQUIRE_FALSE(report.other());
  const std::vector<at::Tensor> tensors{at::empty({3}), at::Tensor(), at::empty({2}, at::kDouble)};
  REQUIRE(tensor_bytes(tensors) == 28);
}

TEST_CASE("overlap: reductions that began before backward ended, by bytes") {
  OverlapMeter meter;
  REQUIRE_FALSE(meter.share());
  const auto record = [&meter](const char* name, const char* category, std::int64_t begin,
                               std::int64_t end, std::int64_t bytes) {
    meter.record({name, "", category, begin, end, bytes});
  };
  record("all_reduce", "comm", 12, 14, 5000);  // Before it was told to listen.
  meter.listen(true);
  record("all_reduce", "comm", 15, 40, 300);  // Within the pass.
  record("all_reduce", "comm", 21, 50, 100);  // After it.
  record("all_reduce", "wait", 16, 50, 999);  // No operation.
  record("barrier", "comm", 16, 50, 0);       // No reduction.
  record("backward", "compute", 10, 20, 0);
  meter.end_step();
  REQUIRE(meter.share().value() == Approx(0.75));
  record("reduce_scatter", "comm", 105, 110, 400);
  record("backward", "compute", 100, 120, 0);
  record("reduce_scatter", "comm", 15, 16, 200);  // Of no pass of this step.
  meter.end_step();
  REQUIRE(meter.share().value() == Approx(0.7));
}
