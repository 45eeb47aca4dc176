// DistributedDataParallel gives the bits of one process, for any world and bucket size.
#include "convoy/ddp/ddp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

void check_recipe(const Recipe& recipe, const Record& expected,
                  DistributedDataParallelOptions options) {
  run_ranks(
      recipe.world,
      [&](Rank& r) {
        at::set_num_threads(1);
        // Other values on other ranks: rank 0's count.
        auto model = make_model(42 + static_cast<std::uint64_t>(r.rank()));
        DistributedDataParallel ddp(model, r.comm_ptr(), options);
        train_and_compare(recipe, ddp, r.rank(), expected);
      },
      comm_options());
}

void check_ddp_world(int world) {
  for (const auto& recipe : recipes(world)) {
    const auto expected = run_one_process(recipe);
    check_recipe(recipe, expected, {});
    // In MiB: a few parameters a bucket, and one.
    check_recipe(recipe, expected, {.bucket_cap_mb = recipe.rule == Rule::kAdamW ? 0.004 : 1e-6});
  }
}

}  // namespace

TEST_CASE("DDP equals one process bit for bit: world 1") { check_ddp_world(1); }
TEST_CASE("DDP equals one process bit for bit: world 2") { check_ddp_world(2); }
TEST_CASE("DDP equals one process bit for bit: world 3") { check_ddp_world(3); }
TEST_CASE("DDP equals one process bit for bit: world 4") { check_ddp_world(4); }
TEST_CASE("DDP equals one process bit for bit: world 5") { check_ddp_world(5); }

TEST_CASE("DDP with torch's optimizers equals Convoy's to 1e-6") {
  check_stock_optimizers<DistributedDataParallel>(DistributedDataParallelOptions{});
}
