// One rank of the tests that run DDP in processes: trains under convoyrun and compares the bits.
#include "convoy/comm/factory.h"
#include "convoy/rendezvous/guarded_main.h"
#include "ddp/parity.h"

#include <iostream>

namespace convoy::test {
namespace {

int train(int, char**) {
  at::set_num_threads(1);
  const Job job = Job::from_environment();
  const auto comm = make_communicator(job, {.timeout = std::chrono::seconds(50)});
  for (const double cap : {3e-4, 25.0}) {
    check_same_run(with_ddp(comm, 1, {.bucket_cap_mb = cap}, true), one_process(comm->size(), 1));
    check_same_run(with_ddp(comm, kMicroSteps, {.bucket_cap_mb = cap}, false),
                   one_process(comm->size(), kMicroSteps));
  }
  std::cout << "rank " << comm->rank() << " of " << comm->size() << " has the same bits\n";
  return 0;
}

}  // namespace
}  // namespace convoy::test

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::test::train); }
