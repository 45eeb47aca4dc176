// One rank that trains with dropout under each strategy, checkpointed and plain, and compares bits.
#include "convoy/comm/factory.h"
#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/state_dict.h"
#include "convoy/rendezvous/guarded_main.h"
#include "recompute/segments.h"
#include "support/reference.h"

#include <iostream>
#include <memory>

namespace convoy::test {
namespace {

constexpr int kSteps = 3;

using Block = Unit<DropBlockImpl>;

struct NetImpl : torch::nn::Module {
  NetImpl() : head(register_module("head", torch::nn::Linear(8, 3))) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(0.2)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head;
};
using Net = Unit<NetImpl>;

Net make_net(bool checkpoints) {
  torch::manual_seed(17);
  Net net;
  if (checkpoints) checkpoint_units(net, wrap_units_of<Block>());
  return net;
}

/// The rank's own batch, with the rank's own random numbers, whoever computes it.
template <typename Forward>
void backward(Forward& forward, int rank, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
  const auto x = rows_of(static_cast<std::uint64_t>(10 * step + rank));
  forward(x).square().mean().backward();
}

/// Factors are powers of two, so that the tails of ATen's kernels round as their bodies do.
torch::optim::SGD make_optimizer(std::vector<at::Tensor> parameters) {
  const auto options = torch::optim::SGDOptions(0.125).momentum(0.5);
  return torch::optim::SGD(std::move(parameters), options);
}

Traces state_of(const torch::OrderedDict<std::string, at::Tensor>& state) {
  Traces traces;
  for (const auto& item : state) traces.emplace_back(item.key(), item.value().detach().clone());
  return traces;
}

Traces train_alone(int world, bool checkpoints) {
  Net net = make_net(checkpoints);
  const auto parameters = net->parameters();
  auto optimizer = make_optimizer(parameters);
  for (int step = 0; step < kSteps; ++step) {
    mean_gradients(parameters, world, [&](int rank) {
      backward(net, rank, step + kSteps);
      backward(net, rank, step);
    });
    optimizer.step();
  }
  return state_of(net->named_parameters());
}

template <typename Wrapped>
void train_wrapped(Wrapped& wrapped, int rank) {
  auto optimizer = make_optimizer(wrapped.module()->parameters());
  for (int step = 0; step < kSteps; ++step) {
    {
      const auto pause = wrapped.no_sync();
      backward(wrapped, rank, step + kSteps);
    }
    backward(wrapped, rank, step);
    optimizer.step();
    optimizer.zero_grad();
  }
}

int train(int, char**) {
  at::set_num_threads(1);
  const Job job = Job::from_environment();
  const auto comm = make_communicator(job, {.timeout = std::chrono::seconds(50)});
  const Traces expected = train_alone(comm->size(), false);
  check_same_traces(train_alone(comm->size(), true), expected);
  for (const bool checkpoints : {false, true}) {
    DistributedDataParallel ddp(make_net(checkpoints), comm, {.bucket_cap_mb = 1e-3});
    train_wrapped(ddp, comm->rank());
    check_same_traces(state_of(ddp.module()->named_parameters()), expected);
    for (const bool shared : {true, false}) {
      FullyShardedDataParallel fsdp(make_net(checkpoints), comm, {.shared_gather = shared});
      train_wrapped(fsdp, comm->rank());
      for (const auto& unit : fsdp.units()) {
        check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " after backward");
      }
      const auto state = full_state_dict(fsdp);
      if (comm->rank() == 0) check_same_traces(state_of(state), expected);
    }
  }
  std::cout << "rank " << comm->rank() << " of " << comm->size() << " has the same bits\n";
  return 0;
}

}  // namespace
}  // namespace convoy::test

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::test::train); }
