// One rank of the test of memory: gathers and loads the state of a model of 8 units of 16 MiB.
#include "convoy/comm/factory.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/state_dict.h"
#include "convoy/model_checkpoint.h"
#include "convoy/optim/adamw.h"
#include "convoy/rendezvous/guarded_main.h"
#include "support/check.h"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

namespace convoy::test {
namespace {

constexpr std::int64_t kSide = 2048;  // A unit is one matrix of 16 MiB.
constexpr std::int64_t kUnitBytes = kSide * kSide * 4;
constexpr int kUnits = 8;

struct PlateImpl : torch::nn::Module {
  PlateImpl() : weight(register_parameter("weight", torch::full({kSide, kSide}, 0.001))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x.matmul(weight); }
  torch::Tensor weight;
};
using Plate = Unit<PlateImpl>;

struct PlatesImpl : torch::nn::Module {
  PlatesImpl() {
    for (int i = 0; i < kUnits; ++i) {
      plates.push_back(register_module("plate" + std::to_string(i), Plate()));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& plate : plates) x = plate->forward(x);
    return x;
  }
  std::vector<Plate> plates;
};
using Plates = Unit<PlatesImpl>;

/// Memory of its own that a process holds now: what it shares with others is not its gather.
std::int64_t own_bytes() {
  std::ifstream status("/proc/self/status");  // Counters, cheap to read.
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  throw Error(ErrorKind::kSystem, "the kernel does not tell RssAnon");
}

/// Samples while it lives, in a thread of its own.
class Peak {
 public:
  Peak()
      : thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            highest_ = std::max(highest_.load(), own_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  std::int64_t stop() {
    thread_.request_stop();
    thread_.join();
    return highest_;
  }

 private:
  std::atomic<std::int64_t> highest_{0};
  std::jthread thread_;
};

void gather(const CommunicatorPtr& comm, bool shared) {
  Plates model;
  FullyShardedDataParallel fsdp(model, comm,
                                {.wrap = wrap_units_of<Plate>(), .shared_gather = shared});
  optim::AdamW adam(model->parameters());
  fsdp(torch::full({1, kSide}, 0.01)).sum().backward();
  adam.step();
  adam.zero_grad();
  comm->barrier()->wait();
  const std::int64_t before = own_bytes();
  StateDict model_state, optimizer_state;
  Peak peak;
  model_state = full_state_dict(fsdp);
  optimizer_state = full_optimizer_state_dict(fsdp, adam);
  const std::int64_t rise = peak.stop() - before;
  const std::int64_t whole = comm->rank() == 0 ? 3 * kUnits * kUnitBytes : 0;
  check(rise <= whole + 2 * kUnitBytes,
        concat("rank ", comm->rank(), " rose by ", rise >> 20, " MiB with ",
               shared ? "shared" : "private", " gathers"));
  if (comm->rank() == 0) {
    check_equal(optimizer_state.size(), std::size_t{3 * kUnits}, "step and two moments each");
    check(
        optimizer_state["state.plate7.weight.exp_avg"].sizes() == c10::IntArrayRef({kSide, kSide}),
        "a whole moment");
  }
  comm->barrier()->wait();
  const std::int64_t before_load = own_bytes();
  Peak load_peak;
  load_full_optimizer_state_dict(fsdp, adam, optimizer_state);  // Over a state that is there.
  const std::int64_t load_rise = load_peak.stop() - before_load;
  check(load_rise <= 2 * kUnitBytes,  // Of a rank's own 4 * kUnitBytes.
        concat("rank ", comm->rank(), " rose by ", load_rise >> 20, " MiB in loading"));
  for (const auto& unit : fsdp.units()) {
    check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " is sharded afterwards");
  }
}

int run(int, char**) {
  at::set_num_threads(1);
  const Job job = Job::from_environment();
  const auto comm = make_communicator(job, {.timeout = std::chrono::seconds(60)});
  gather(comm, false);
  gather(comm, true);
  std::cout << "rank " << comm->rank() << " of " << comm->size() << " has the full state\n";
  return 0;
}

}  // namespace
}  // namespace convoy::test

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::test::run); }
