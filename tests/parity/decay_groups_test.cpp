// decay_groups and count_parameters answer alike for a plain, replicated and sharded model.
#include "convoy/decay_groups.h"

#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

/// The position in `model`'s parameters of every member of both groups.
std::vector<std::vector<std::size_t>> positions(const std::vector<optim::ParamGroup>& groups,
                                                const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  std::vector<std::vector<std::size_t>> result;
  for (const auto& group : groups) {
    auto& list = result.emplace_back();
    for (const auto& param : group.params) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].is_same(param)) list.push_back(i);
      }
    }
  }
  return result;
}

}  // namespace

TEST_CASE("decay_groups and count_parameters do not depend on the strategy") {
  const auto plain = make_model();
  const auto expected = positions(decay_groups(*plain, 0.1), *plain);
  REQUIRE(expected[0].size() == 2 + 3 * 4 + 1);  // Embeddings, four matrices a block, the head.
  REQUIRE(expected[0].size() + expected[1].size() == plain->parameters().size());
  REQUIRE(positions(decay_groups(plain, 0.1), *plain) == expected);
  const auto count = count_parameters(*plain);
  for (const int world : {1, 3, 5}) {
    run_ranks(
        world,
        [&](Rank& r) {
          auto replicated = make_model();
          DistributedDataParallel ddp(replicated, r.comm_ptr());
          check(positions(decay_groups(ddp, 0.1), *replicated) == expected, "DDP");
          check_equal(count_parameters(*replicated), count, "DDP");
          auto sharded = make_model();
          FullyShardedDataParallel fsdp(sharded, r.comm_ptr());
          check(positions(decay_groups(fsdp, 0.1), *sharded) == expected, "FSDP");
          check(positions(decay_groups(sharded, 0.1), *sharded) == expected, "FSDP, by its model");
          check_equal(count_parameters(*sharded), count, "FSDP");
        },
        comm_options());
  }
}
