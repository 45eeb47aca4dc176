// One rank of the tests that run FSDP in processes: trains under convoyrun and compares the bits.
#include "convoy/comm/factory.h"
#include "convoy/rendezvous/guarded_main.h"
#include "harness.h"

#include <iostream>

namespace convoy::test {
namespace {

// Trains sharded, with a step of accumulation in each cycle, and returns rank 0's full state.
StateDict train_as_rank(const Training<TinyGpt>& training, const CommunicatorPtr& comm,
                        bool shared) {
  TinyGpt model = training.make();
  FullyShardedDataParallel fsdp(model, comm, {.shared_gather = shared});
  const auto optimizer = training.optimizer(model->parameters());
  for (int step = 0; step < training.steps; ++step) {
    {
      const auto pause = fsdp.no_sync();
      training.loss(model, comm->rank(), 2 * step).backward();
    }
    training.loss(model, comm->rank(), 2 * step + 1).backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  return full_state_dict(fsdp);
}

StateDict train_as_one(const Training<TinyGpt>& training, int world) {
  TinyGpt model = training.make();
  const auto parameters = model->parameters();
  const auto optimizer = training.optimizer(parameters);
  for (int step = 0; step < training.steps; ++step) {
    mean_gradients(parameters, world, [&](int rank) {
      training.loss(model, rank, 2 * step).backward();
      training.loss(model, rank, 2 * step + 1).backward();
    });
    optimizer->step();
  }
  return plain_state(model);
}

int train(int, char**) {
  at::set_num_threads(1);
  const Job job = Job::from_environment();
  const auto comm = make_communicator(job, {.timeout = std::chrono::seconds(50)});
  const auto training = tiny_training({}, 20);
  for (const bool shared : {true, false}) {
    const StateDict state = train_as_rank(training, comm, shared);
    if (comm->rank() == 0) {
      check_same_state(state, train_as_one(training, comm->size()), path_name(shared));
    }
  }
  std::cout << "rank " << comm->rank() << " of " << comm->size() << " has the same bits\n";
  return 0;
}

}  // namespace
}  // namespace convoy::test

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::test::train); }
