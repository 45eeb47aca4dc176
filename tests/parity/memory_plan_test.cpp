// Predicted memory against measured memory, for both wrappers and both kinds of gather.
#include "convoy/ddp/memory_plan.h"

#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/model_plan.h"
#include "convoy/profile/memory_report.h"
#include "parity_run.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// With a buffer, and a parameter that is frozen.
struct BufferedGptImpl : TinyGptImpl {
  BufferedGptImpl() : mask(register_buffer("mask", torch::ones({7, 7}))) {
    named_parameters()["position.weight"].set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return TinyGptImpl::forward(tokens); }
  torch::Tensor mask;
};
using BufferedGpt = Unit<BufferedGptImpl>;

void check_within_five_percent(std::int64_t predicted, std::int64_t measured,
                               const std::string& what) {
  check(20 * std::abs(predicted - measured) <= measured,
        concat(what, ": predicted ", predicted, ", measured ", measured));
}

// Two steps, and the report where gradients stand.
template <class Wrapped>
MemoryReport measure(Wrapped& wrapped, BufferedGpt& model, int rank) {
  optim::AdamW adam(model->parameters());
  MemoryReport report;
  for (int step = 0; step < 2; ++step) {
    const TinyBatch batch = tiny_batch(rank, step);
    tiny_loss(wrapped(batch.tokens), batch.targets).backward();
    adam.step();
    report = memory_report(wrapped, adam);
    adam.zero_grad();
  }
  return report;
}

void compare(const MemoryPlan& plan, const MemoryReport& report) {
  check_within_five_percent(plan.parameters, report.parameters, "parameters");
  check_within_five_percent(plan.gradients, report.gradients, "gradients");
  check_within_five_percent(plan.optimizer, report.optimizer, "optimizer");
  check_within_five_percent(plan.buffers, report.buffers, "buffers");
  check(report.buffers == 4 * 49, "the buffer is counted");
}

}  // namespace

TEST_CASE("predicted memory is within five percent of what is measured") {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](Rank& rank) {
      at::set_num_threads(1);
      {
        BufferedGpt model;
        const MemoryPlan plan = ddp::plan_memory(*model);
        DistributedDataParallel wrapped(model, rank.comm_ptr());
        compare(plan, measure(wrapped, model, rank.rank()));
        check_equal(plan.gradients + plan.gradient_buffers, wrapped.bucket_bytes(), "buckets");
      }
      for (const bool shared : {true, false}) {
        BufferedGpt model;
        const fsdp::Options options{.wrap = wrap_units_of<TinyBlock>(), .shared_gather = shared};
        const MemoryPlan plan = fsdp::plan_memory(*model, world, rank.rank(), options);
        FullyShardedDataParallel wrapped(model, rank.comm_ptr(), options);
        compare(plan, measure(wrapped, model, rank.rank()));
        check_equal(plan.gradient_buffers, wrapped.gradient_buffer_bytes(), "gradient buffers");
        check_equal(plan.full_parameters > 0, !shared, "full parameters of this rank's own");
      }
    });
  }
}

}  // namespace convoy
