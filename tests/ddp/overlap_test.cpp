// What runs when: buckets in flight during backward, and the order they are rebuilt in.
#include "convoy/base/trace.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "ddp/models.h"
#include "ddp/stack.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace convoy::test {

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
            {.timeout = std::chrono::seconds(60), .trace = sink});
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
            {.timeout = std::chrono::seconds(60), .trace = sink});
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
