// FullyShardedDataParallel gives the bits of one process, whichever way it gathers.
#include "convoy/fsdp/fsdp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

void check_fsdp_world(int world) {
  for (const auto& recipe : recipes(world)) {
    const auto expected = run_one_process(recipe);
    for (const bool shared_gather : {true, false}) {
      run_ranks(
          world,
          [&](Rank& r) {
            at::set_num_threads(1);
            // Other values on other ranks: rank 0's count.
            auto model = make_model(42 + static_cast<std::uint64_t>(r.rank()));
            FullyShardedDataParallel fsdp(
                model, r.comm_ptr(),
                {.wrap = wrap_units_of<TinyBlockImpl>(), .shared_gather = shared_gather});
            check_equal(fsdp.gathers_shared(), shared_gather, "gather path");
            train_and_compare(recipe, fsdp, r.rank(), expected);
          },
          comm_options());
    }
  }
}

}  // namespace

TEST_CASE("FSDP equals one process bit for bit: world 1") { check_fsdp_world(1); }
TEST_CASE("FSDP equals one process bit for bit: world 2") { check_fsdp_world(2); }
TEST_CASE("FSDP equals one process bit for bit: world 3") { check_fsdp_world(3); }
TEST_CASE("FSDP equals one process bit for bit: world 4") { check_fsdp_world(4); }
TEST_CASE("FSDP equals one process bit for bit: world 5") { check_fsdp_world(5); }

TEST_CASE("FSDP with torch's optimizers equals Convoy's to 1e-6") {
  check_stock_optimizers<FullyShardedDataParallel>(
      fsdp::Options{.wrap = wrap_units_of<TinyBlockImpl>()});
}
