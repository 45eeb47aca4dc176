// DDP against one process that adds the ranks' gradients in rank order and divides once: the bits.
#include "ddp/parity.h"

#include "convoy/comm/run_ranks.h"
#include "support/catch.h"

namespace convoy::test {

TEST_CASE("DDP equals one process in bits at worlds 1 to 5 and any bucket size") {
  at::set_num_threads(1);
  for (int world = 1; world <= 5; ++world) {
    const Run expected = one_process(world, 1);
    // A bucket for each parameter, a few together, two sizes that cut differently, all in one.
    for (const double cap : {1e-6, 3e-4, 7e-4, 25.0}) {
      run_ranks(world, [&](Rank& rank) {
        at::set_num_threads(1);
        check_same_run(with_ddp(rank.comm_ptr(), 1, {.bucket_cap_mb = cap}, true), expected);
      });
    }
    run_ranks(world, [&](Rank& rank) {
      check_same_run(with_ddp(rank.comm_ptr(), 1, {.first_bucket_cap_mb = 1e-4}, true), expected);
    });
  }
}

TEST_CASE("gradients zeroed in place give the same bits") {
  for (const int world : {1, 2, 3}) {
    const Run expected = one_process(world, 1);
    run_ranks(world, [&](Rank& rank) {
      check_same_run(with_ddp(rank.comm_ptr(), 1, {.bucket_cap_mb = 3e-4}, false), expected);
    });
  }
}

TEST_CASE("accumulation under no_sync equals one process in bits") {
  for (const int world : {1, 2, 3, 5}) {
    const Run expected = one_process(world, kMicroSteps);
    for (const bool set_to_none : {true, false}) {
      run_ranks(world, [&](Rank& rank) {
        check_same_run(with_ddp(rank.comm_ptr(), kMicroSteps, {.bucket_cap_mb = 3e-4}, set_to_none),
                       expected);
      });
    }
  }
}

TEST_CASE("searching for unused parameters changes no bits where all are used") {
  const Run expected = one_process(3, 1);
  run_ranks(3, [&](Rank& rank) {
    check_same_run(
        with_ddp(rank.comm_ptr(), 1, {.bucket_cap_mb = 3e-4, .find_unused_parameters = true}, true),
        expected);
  });
}

}  // namespace convoy::test
