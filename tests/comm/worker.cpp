// One rank of the process tests: comm_worker SCENARIO [ARGS].
#include "comm/random_sequence.h"
#include "comm/values.h"
#include "convoy/base/check.h"
#include "convoy/comm/factory.h"
#include "support/check.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;
using namespace std::chrono_literals;

namespace {

using Args = std::vector<std::string>;

void say(const std::string& text) {
  const auto line = text + "\n";
  if (::write(1, line.data(), line.size()) < 0) std::abort();
}

int number(const Args& args, std::size_t index) { return std::stoi(args.at(index)); }

CommunicatorPtr make(const Job& job, std::chrono::nanoseconds timeout = 30s,
                     std::chrono::nanoseconds warn_after = 10s) {
  return make_communicator(job, {.timeout = timeout, .warn_after = warn_after});
}

// random SEED COUNT: a checked random sequence.
void random(const Job& job, const Args& args) {
  const auto comm = make(job);
  run_random_sequence(*comm, static_cast<unsigned>(number(args, 0)), number(args, 1));
  say("done");
}

// loop MIB TIMEOUT_MS WARN_MS: all_reduces for ever.
void loop(const Job& job, const Args& args) {
  const auto comm = make(job, number(args, 1) * 1ms, number(args, 2) * 1ms);
  const auto numel = std::int64_t{number(args, 0)} << 18;
  auto tensor = comm->allocate(numel, at::kFloat, {.tag = "buffer"});
  tensor.fill_(static_cast<float>(job.rank()));
  for (int round = 0;; ++round) {
    comm->all_reduce(tensor, ReduceOp::kAvg, {.tag = concat("round ", round)})->wait();
    if (round == 3) say("looping");
  }
}

// stuck RANK TIMEOUT_MS: RANK never enters the third operation.
void stuck(const Job& job, const Args& args) {
  const auto comm = make(job, number(args, 1) * 1ms, 1s);
  auto tensor = at::ones({1000});
  comm->all_reduce(tensor, ReduceOp::kSum, {.tag = "layer1"})->wait();
  comm->all_reduce(tensor, ReduceOp::kSum, {.tag = "layer2"})->wait();
  say("waiting");
  if (job.rank() == number(args, 0)) {
    std::this_thread::sleep_for(30s);
    return;
  }
  comm->all_reduce(tensor, ReduceOp::kSum, {.tag = "layer3"})->wait();
}

// early RANK: RANK ends normally at once, the others enter a barrier.
void early(const Job& job, const Args& args) {
  const auto comm = make(job);
  if (job.rank() == number(args, 0)) return;
  comm->barrier({.tag = "end of epoch"})->wait();
}

// late RANK MS: a clean end, for which RANK needs longer; the others do not wait for it.
void late(const Job& job, const Args& args) {
  const auto comm = make(job);
  auto ordinary = at::full({200000}, 1.0F);
  auto arena = comm->allocate(200000, at::kFloat);
  arena.fill_(2.0F);
  const auto first = comm->all_reduce(ordinary);
  const auto second = comm->all_reduce(arena);
  if (job.rank() == number(args, 0)) std::this_thread::sleep_for(number(args, 1) * 1ms);
  first->wait();
  second->wait();
  check(ordinary.eq(job.world_size()).all().item<bool>(), "wrong sum");
  check(arena.eq(2 * job.world_size()).all().item<bool>(), "wrong sum in the arena");
  if (job.rank() == number(args, 0)) std::this_thread::sleep_for(number(args, 1) * 1ms);
  say("done");
}

// rounds COUNT: groups are made, used and ended, with some delay here and there.
void rounds(const Job& job, const Args& args) {
  for (int round = 0; round < number(args, 0); ++round) {
    const auto comm = make(job);
    auto tensor = values_of(job.rank(), 1003, at::kFloat, round);
    comm->all_reduce(tensor)->wait();
    check_same_bits(tensor,
                    reduced_values(job.world_size(), 1003, at::kFloat, ReduceOp::kSum, round),
                    concat("round ", round));
    std::this_thread::sleep_for((job.rank() * 37 + round * 11) % 50 * 1ms);
  }
  say("done");
}

// recover: the first group fails in the middle of an operation; the next one works.
void recover(const Job& job, const Args& /*args*/) {
  auto comm = make(job);
  at::Tensor tensor;
  // The failure may reach a rank as early as here.
  check_throws(ErrorKind::kMisuse, "rank 1 had enough", [&] {
    tensor = comm->allocate(1 << 20, at::kFloat);
    if (job.rank() == 1) comm->abort(Error(ErrorKind::kMisuse, "rank 1 had enough", 1));
    for (;;) comm->all_reduce(tensor)->wait();
  });
  const auto begin = std::chrono::steady_clock::now();
  comm.reset();
  check(std::chrono::steady_clock::now() - begin < 2s, "ending a failed group took long");
  comm = make(job);
  auto again = at::full({10}, static_cast<float>(job.rank()));
  comm->all_reduce(again)->wait();
  check(again.eq(job.world_size() * (job.world_size() - 1) / 2).all().item<bool>(), "wrong sum");
  if (tensor.defined()) tensor.fill_(3.0F);  // It is still ours to use.
  say("done");
}

// limit RANK BYTES MIB: RANK and those above may only make files up to BYTES; then MIB are
// allocated. (A rank whose part lies inside what a peer has reserved does not make the file
// longer.)
void limit(const Job& job, const Args& args) {
  const auto comm = make(job);
  if (job.rank() >= number(args, 0)) {
    const auto bytes = static_cast<rlim_t>(number(args, 1));
    const rlimit most{bytes, bytes};
    check(::setrlimit(RLIMIT_FSIZE, &most) == 0, "setrlimit");
  }
  const auto numel = std::int64_t{number(args, 2)} << 18;
  check_throws(ErrorKind::kMemory, concat("rank ", number(args, 0)),
               [&] { comm->allocate(numel, at::kFloat, {.tag = "too large"}); });
  say("refused");
  // The group lives on: ordinary tensors still work, and memory that is there.
  auto tensor = at::full({100}, 1.0F);
  comm->all_reduce(tensor)->wait();
  check(tensor.eq(job.world_size()).all().item<bool>(), "wrong sum");
  say("done");
}

// start_limit BYTES [LATE_MS]: rank 0 may not even make the first segment; the last rank is late.
void start_limit(const Job& job, const Args& args) {
  if (job.rank() == 0) {
    const auto bytes = static_cast<rlim_t>(number(args, 0));
    const rlimit most{bytes, bytes};
    check(::setrlimit(RLIMIT_FSIZE, &most) == 0, "setrlimit");
  }
  const bool is_late = args.size() > 1 && job.rank() == job.world_size() - 1;
  if (is_late) std::this_thread::sleep_for(number(args, 1) * 1ms);
  make(job);
}

// join TIMEOUT_MS COUNT [LATE_MS]: only makes the group, once COUNT ranks have started; rank 0 is
// late.
void join(const Job& job, const Args& args) {
  for (auto here = job.store()->add("here", 1); here < number(args, 1);) {
    std::this_thread::sleep_for(5ms);
    here = job.store()->add("here", 0);
  }
  if (args.size() > 2 && job.rank() == 0) std::this_thread::sleep_for(number(args, 2) * 1ms);
  make(job, number(args, 0) * 1ms);
  say("done");
}

// raise RANK: RANK throws between two operations.
void raise(const Job& job, const Args& args) {
  const auto comm = make(job);
  auto tensor = comm->allocate(1 << 20, at::kFloat);
  for (int round = 0;; ++round) {
    comm->all_reduce(tensor, ReduceOp::kSum, {.tag = concat("round ", round)})->wait();
    if (job.rank() == number(args, 0) && round == 5) throw std::runtime_error("out of ideas");
  }
}

// The places of a large tensor that are looked at: `numel` elements from `begin`, both ends.
std::vector<at::Tensor> ends_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t numel) {
  return {tensor.narrow(0, begin, 16), tensor.narrow(0, begin + numel - 16, 16)};
}

// all_reduce and broadcast of all of `tensor`, looked at in its ends and in the middle.
void move_whole(Communicator& comm, const at::Tensor& tensor) {
  auto places = ends_of(tensor, 0, tensor.numel());
  places.push_back(tensor.narrow(0, tensor.numel() / 2, 16));
  const auto fill = [&](int seed) {
    for (auto& place : places) place.copy_(values_of(comm.rank(), 16, at::kByte, seed++));
  };
  fill(5);
  comm.all_reduce(tensor)->wait();
  int seed = 5;
  for (const auto& place : places) {
    check_same_bits(place, reduced_values(comm.size(), 16, at::kByte, ReduceOp::kSum, seed++),
                    "all_reduce");
  }
  fill(8);
  comm.broadcast(tensor, 1)->wait();
  seed = 8;
  for (const auto& place : places) {
    check_same_bits(place, values_of(1, 16, at::kByte, seed++), "broadcast");
  }
}

// all_gather and reduce_scatter in place, looked at in the ends of every rank's part.
void move_parts(Communicator& comm, const at::Tensor& tensor) {
  const auto part = tensor.numel() / comm.size();
  const auto own = tensor.narrow(0, part * comm.rank(), part);
  for (auto& place : ends_of(own, 0, part)) place.copy_(values_of(comm.rank(), 16, at::kByte, 11));
  comm.all_gather(tensor, own)->wait();
  for (int r = 0; r < comm.size(); ++r) {
    for (auto& place : ends_of(tensor, part * r, part)) {
      check_same_bits(place, values_of(r, 16, at::kByte, 11), "all_gather");
      place.copy_(values_of(comm.rank(), 16, at::kByte, 12 + r));
    }
  }
  comm.reduce_scatter(own, tensor)->wait();
  for (const auto& place : ends_of(own, 0, part)) {
    check_same_bits(place,
                    reduced_values(comm.size(), 16, at::kByte, ReduceOp::kSum, 12 + comm.rank()),
                    "reduce_scatter");
  }
}

// large: one tensor of more than 2^31 bytes, in the arena and out of it.
void large(const Job& job, const Args& /*args*/) {
  const auto comm = make(job, 300s);
  const auto numel = (std::int64_t{1} << 31) + 8;
  const auto test = [&](const at::Tensor& tensor) {
    move_whole(*comm, tensor);
    move_parts(*comm, tensor);
  };
  test(at::zeros({numel}, at::kByte));  // First, so that only one of the two is there at a time.
  test(comm->allocate(numel, at::kByte));
  say("done");
}

int run(const std::string& scenario, const Args& args) {
  const std::map<std::string, std::function<void(const Job&, const Args&)>> scenarios{
      {"random", random}, {"loop", loop},       {"stuck", stuck},
      {"early", early},   {"late", late},       {"rounds", rounds},
      {"limit", limit},   {"recover", recover}, {"start_limit", start_limit},
      {"join", join},     {"raise", raise},     {"large", large}};
  at::set_num_threads(1);
  try {
    scenarios.at(scenario)(Job::from_environment(), args);
    return 0;
  } catch (const Error& error) {
    say(concat("error ", to_string(error.kind()), " rank ", error.rank(), ": ", error.what()));
  } catch (const std::exception& error) {
    say(concat("exception ", error.what()));
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return run(argv[1], Args(argv + 2, argv + argc));
}
