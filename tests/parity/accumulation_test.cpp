// Backwards that are all synchronised, one after the other without zeroing.
#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

constexpr int kMeanWorld = 3;
constexpr int kMeanBackwards = 4;

template <class Model>
torch::Tensor mean_batch_loss(Model& model, int rank, int backward) {
  const auto batch = tiny_batch(rank, backward);
  return tiny_loss(model(batch.tokens), batch.targets);
}

/// One process. Where m is there and ranks add g0, g1, ... DDP takes the mean of m + g0, m + g1,
/// ...
/// (`mean_of_sums`), and FSDP, whose ranks hold m in parts, adds the mean of g0, g1, ... to m.
std::vector<at::Tensor> sums_of_process(bool mean_of_sums) {
  auto model = make_model();
  const auto parameters = model->parameters();
  std::vector<at::Tensor> sums;
  for (const auto& parameter : parameters) sums.push_back(torch::zeros_like(parameter));
  for (int i = 0; i < kMeanBackwards; ++i) {
    mean_gradients(parameters, kMeanWorld, [&](int rank) {
      if (mean_of_sums) {
        for (std::size_t p = 0; p < sums.size(); ++p) {
          parameters[p].mutable_grad() = sums[p].clone();
        }
      }
      mean_batch_loss(model, rank, i).backward();
    });
    for (std::size_t p = 0; p < sums.size(); ++p) {
      sums[p] = mean_of_sums ? parameters[p].grad() : sums[p] + parameters[p].grad();
    }
  }
  return sums;
}

template <class Wrapped>
void check_sums(Wrapped& wrapped, int rank, const std::string& strategy,
                const std::vector<at::Tensor>& sums) {
  for (int i = 0; i < kMeanBackwards; ++i) mean_batch_loss(wrapped, rank, i).backward();
  const auto spans = wrapped.shard_spans();
  check_equal(spans.size(), sums.size(), "number of parameters");
  for (std::size_t i = 0; i < spans.size(); ++i) {
    check_same_bits(spans[i].leaf.grad().flatten(),
                    sums[i].flatten().narrow(0, spans[i].begin, spans[i].numel),
                    concat(strategy, ": ", spans[i].name));
  }
}

}  // namespace

TEST_CASE("accumulation with every backward synchronised has the bits of one process") {
  const auto means_of_sums = sums_of_process(true);
  const auto sums_of_means = sums_of_process(false);
  run_ranks(
      kMeanWorld,
      [&](Rank& r) {
        at::set_num_threads(1);
        {
          auto model = make_model();
          DistributedDataParallel ddp(model, r.comm_ptr());
          check_sums(ddp, r.rank(), "ddp", means_of_sums);
        }
        for (const bool shared : {true, false}) {
          auto model = make_model();
          FullyShardedDataParallel fsdp(model, r.comm_ptr(), {.shared_gather = shared});
          check_sums(fsdp, r.rank(), shared ? "fsdp, shared" : "fsdp, private", sums_of_means);
        }
      },
      comm_options());
}
