// Backwards that are all synchronised: each adds its own mean, in the order of the backwards.
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

/// ((m0 + m1) + m2) + ..., where each is a sum over ranks in rank order divided once.
std::vector<at::Tensor> sums_of_means() {
  auto model = make_model();
  std::vector<at::Tensor> sums;
  for (int i = 0; i < kMeanBackwards; ++i) {
    mean_gradients(model->parameters(), kMeanWorld,
                   [&](int rank) { mean_batch_loss(model, rank, i).backward(); });
    std::size_t at = 0;
    for (const auto& parameter : model->parameters()) {
      if (i == 0) sums.push_back(torch::zeros_like(parameter));
      sums[at++].add_(parameter.grad());
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

TEST_CASE("accumulation with every backward synchronised adds the means of one process in bits") {
  const auto sums = sums_of_means();
  run_ranks(
      kMeanWorld,
      [&](Rank& r) {
        at::set_num_threads(1);
        {
          auto model = make_model();
          DistributedDataParallel ddp(model, r.comm_ptr());
          check_sums(ddp, r.rank(), "ddp", sums);
        }
        for (const bool shared : {true, false}) {
          auto model = make_model();
          FullyShardedDataParallel fsdp(model, r.comm_ptr(), {.shared_gather = shared});
          check_sums(fsdp, r.rank(), shared ? "fsdp, shared" : "fsdp, private", sums);
        }
      },
      comm_options());
}
