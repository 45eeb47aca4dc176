// Times the collectives of the host backend and checks every timed result, as a table like that of
// nccl-tests: time, algorithm and bus bandwidth, wrong elements; for memory of the arena and for
// ordinary tensors.
//
// Run it with `convoyrun -n N --bind-to core -- benchmark_collectives`, or alone with --ranks N,
// which does that with the convoyrun beside it.
#include "convoy/base/check.h"
#include "convoy/base/env.h"
#include "convoy/base/parse.h"
#include "convoy/base/suggest.h"
#include "convoy/comm/factory.h"
#include "convoy/rendezvous/guarded_main.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace {

using convoy::Communicator;
using convoy::OpKind;
using convoy::ReduceOp;

constexpr const char* kUsage =
    "usage: benchmark_collectives [--ranks N] [--min BYTES] [--max BYTES] [--factor F] [--op "
    "NAME]\n"
    "                             [--rounds N] [--json FILE]\n\n"
    "Times the collectives between N ranks and checks each result, for memory of the arena and "
    "for\n"
    "ordinary tensors. Starts the ranks itself, or runs under convoyrun.\n\n"
    "  --ranks N      ranks to start (1; under convoyrun its ranks count)\n"
    "  --min BYTES    smallest size (4096)\n"
    "  --max BYTES    largest size (268435456)\n"
    "  --factor F     from one size to the next (4)\n"
    "  --op NAME      all_reduce, reduce_scatter or all_gather (all three)\n"
    "  --rounds N     rounds, of which the fastest counts (5)\n"
    "  --json FILE    also write the rows to FILE\n";

struct Flags {
  bool help = false;
  std::int64_t ranks = 0;
  std::int64_t min_bytes = 4 << 10;
  std::int64_t max_bytes = 256 << 20;
  std::int64_t factor = 4;
  std::int64_t rounds = 5;
  std::string op;
  std::string json;
};

void set_flag(Flags& flags, const std::string& name, const std::string& value) {
  const auto number = [&](std::int64_t least) {
    const auto parsed = convoy::parse_int(value, least);
    CONVOY_REQUIRE(parsed, kInvalidArgument, name, " takes a whole number from ", least, ", got '",
                   value, "' (see --help)");
    return *parsed;
  };
  if (name == "--ranks") {
    flags.ranks = number(1);
  } else if (name == "--min") {
    flags.min_bytes = number(4);
  } else if (name == "--max") {
    flags.max_bytes = number(4);
  } else if (name == "--factor") {
    flags.factor = number(2);
  } else if (name == "--rounds") {
    flags.rounds = number(1);
  } else if (name == "--op") {
    const std::array<std::string, 3> names{"all_reduce", "reduce_scatter", "all_gather"};
    CONVOY_REQUIRE(std::find(names.begin(), names.end(), value) != names.end(), kInvalidArgument,
                   "there is no operation '", value, "'", convoy::did_you_mean(value, names),
                   "; there are all_reduce, reduce_scatter and all_gather");
    flags.op = value;
  } else {
    flags.json = value;
  }
}

Flags parse(int argc, char** argv) {
  const std::array<std::string, 8> names{"--ranks",  "--min", "--max",  "--factor",
                                         "--rounds", "--op",  "--json", "--help"};
  Flags flags;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    CONVOY_REQUIRE(std::find(names.begin(), names.end(), name) != names.end(), kInvalidArgument,
                   "there is no flag '", name, "'", convoy::did_you_mean(name, names),
                   " (see --help)");
    if (name == "--help") {
      flags.help = true;
      return flags;
    }
    CONVOY_REQUIRE(i + 1 < argc, kInvalidArgument, name, " needs a value (see --help)");
    set_flag(flags, name, argv[i + 1]);
  }
  CONVOY_REQUIRE(flags.min_bytes <= flags.max_bytes, kInvalidArgument, "--min ", flags.min_bytes,
                 " is above --max ", flags.max_bytes);
  return flags;
}

// Opened before anything is timed, so that a wrong path costs nothing. Empty: writes nothing.
std::ofstream open_json(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  CONVOY_REQUIRE(file.is_open(), kInvalidArgument, "cannot write --json '", path,
                 "': ", std::generic_category().message(errno));
  return file;
}

void write_json(std::ofstream& file, int ranks, const nlohmann::json& rows) {
  if (!file.is_open()) return;
  file << nlohmann::json{{"schema", 1}, {"ranks", ranks}, {"rows", rows}}.dump(1) << std::endl;
  if (!file) convoy::throw_system_error("cannot write the --json file", errno);
}

// What nccl-tests needs to know of a collective: names, buffers, and the factor of bus bandwidth.
struct Collective {
  OpKind kind;
  // Bytes of a rank's input and output for a table row of `bytes`.
  std::int64_t input_bytes;
  std::int64_t output_bytes;
  double bus_factor;
};

Collective describe(OpKind kind, std::int64_t bytes, int ranks) {
  const auto share = (ranks - 1.0) / ranks;
  switch (kind) {
    case OpKind::kReduceScatter: return {kind, bytes, bytes / ranks, share};
    case OpKind::kAllGather: return {kind, bytes / ranks, bytes, share};
    default: return {kind, bytes, bytes, 2 * share};
  }
}

struct Result {
  double seconds = 0;
  std::int64_t wrong = 0;
};

class Bench {
 public:
  Bench(Communicator& comm, const Flags& flags, bool in_arena)
      : comm_(comm), rounds_(static_cast<int>(flags.rounds)) {
    const auto numel = flags.max_bytes / 4;
    if (in_arena) {
      input_ = comm.allocate(numel, at::kFloat, {.tag = "input"});
      output_ = comm.allocate(numel, at::kFloat, {.tag = "output"});
    } else {
      input_ = at::zeros({numel});
      output_ = at::zeros({numel});
    }
  }

  // The least mean time of some rounds; the slowest rank counts, as all wait for it.
  Result run(const Collective& collective) {
    const auto input = input_.narrow(0, 0, collective.input_bytes / 4);
    const auto output = output_.narrow(0, 0, collective.output_bytes / 4);
    const auto turns = std::clamp<std::int64_t>(
        (std::int64_t{64} << 20) / std::max(collective.input_bytes, collective.output_bytes), 3,
        400);
    Result result;
    result.seconds = 1e9;
    fill(input);
    once(collective, input, output);
    for (int round = 0; round < rounds_; ++round) {
      comm_.barrier()->wait();
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t turn = 0; turn < turns; ++turn) once(collective, input, output);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      auto slowest = at::full({1}, passed.count() / static_cast<double>(turns), at::kDouble);
      comm_.all_reduce(slowest, ReduceOp::kMax)->wait();
      result.seconds = std::min(result.seconds, slowest.item<double>());
    }
    fill(input);
    output.zero_();
    once(collective, input, output);
    auto wrong = at::full({1}, count_wrong(collective, input, output), at::kLong);
    comm_.all_reduce(wrong)->wait();
    result.wrong = wrong.item<std::int64_t>();
    return result;
  }

 private:
  // Small whole numbers: their sums are exact. Different for each rank and element.
  static at::Tensor values(int rank, std::int64_t numel) {
    return at::arange(numel, at::kInt).remainder(1021).mul_(rank + 1).to(at::kFloat);
  }
  void fill(const at::Tensor& input) { input.copy_(values(comm_.rank(), input.numel())); }

  void once(const Collective& collective, const at::Tensor& input, const at::Tensor& output) {
    switch (collective.kind) {
      case OpKind::kReduceScatter: comm_.reduce_scatter(output, input)->wait(); return;
      case OpKind::kAllGather: comm_.all_gather(output, input)->wait(); return;
      default: comm_.all_reduce(input)->wait(); return;
    }
  }

  std::int64_t count_wrong(const Collective& collective, const at::Tensor& input,
                           const at::Tensor& output) {
    const auto ranks = comm_.size();
    if (collective.kind == OpKind::kAllGather) {
      std::int64_t wrong = 0;
      for (int r = 0; r < ranks; ++r) {
        const auto part = output.narrow(0, r * input.numel(), input.numel());
        wrong += part.ne(values(r, input.numel())).sum().item<std::int64_t>();
      }
      return wrong;
    }
    // Ranks add up to 1 + 2 + ... times the values of rank 0.
    const auto sum = values(0, input.numel()).mul_(ranks * (ranks + 1) / 2);
    if (collective.kind == OpKind::kAllReduce) return input.ne(sum).sum().item<std::int64_t>();
    const auto part = sum.narrow(0, comm_.rank() * output.numel(), output.numel());
    return output.ne(part).sum().item<std::int64_t>();
  }

  Communicator& comm_;
  int rounds_;
  at::Tensor input_;
  at::Tensor output_;
};

void print_header(OpKind kind, int ranks) {
  std::printf("# %s, float, sum, %d ranks, 1 thread each\n", std::string(to_string(kind)).c_str(),
              ranks);
  std::printf("# %34s arena %28s ordinary\n", "", "");
  std::printf("#%11s %12s %11s %7s %7s %6s %11s %7s %7s %6s\n", "size", "count", "time", "algbw",
              "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
  std::printf("#%11s %12s %11s %7s %7s %6s %11s %7s %7s %6s\n", "(B)", "(elements)", "(us)",
              "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

int bench(int argc, char** argv) {
  const auto flags = parse(argc, argv);
  at::set_num_threads(1);
  const auto job = convoy::Job::from_environment();
  auto json = open_json(job.rank() == 0 ? flags.json : "");
  const auto comm = convoy::make_communicator(job);
  Bench arena(*comm, flags, true);
  Bench ordinary(*comm, flags, false);
  auto rows = nlohmann::json::array();
  for (const auto kind : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather}) {
    if (!flags.op.empty() && flags.op != to_string(kind)) continue;
    if (job.rank() == 0) print_header(kind, job.world_size());
    for (auto bytes = flags.min_bytes; bytes <= flags.max_bytes; bytes *= flags.factor) {
      const auto whole = bytes / (4 * job.world_size()) * 4 * job.world_size();
      if (whole == 0) continue;
      const auto collective = describe(kind, whole, job.world_size());
      const std::array results{arena.run(collective), ordinary.run(collective)};
      if (job.rank() != 0) continue;
      std::printf("%12lld %12lld", static_cast<long long>(whole),
                  static_cast<long long>(whole / 4));
      for (std::size_t i = 0; i < results.size(); ++i) {
        const auto algbw = static_cast<double>(whole) * 1e-9 / results[i].seconds;
        std::printf(" %11.2f %7.2f %7.2f %6lld", results[i].seconds * 1e6, algbw,
                    algbw * collective.bus_factor, static_cast<long long>(results[i].wrong));
        rows.push_back({{"op", to_string(kind)},
                        {"memory", i == 0 ? "arena" : "ordinary"},
                        {"bytes", whole},
                        {"seconds", results[i].seconds},
                        {"algbw", algbw * 1e9},
                        {"busbw", algbw * collective.bus_factor * 1e9},
                        {"wrong", results[i].wrong}});
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  write_json(json, job.world_size(), rows);
  return 0;
}

// Starts the ranks when this process is alone and --ranks asks for more.
int run(int argc, char** argv) {
  const auto flags = parse(argc, argv);
  if (flags.help) {
    if (convoy::read_environment().rank.value_or(0) == 0) std::fputs(kUsage, stdout);
    return 0;
  }
  if (flags.ranks < 2 || convoy::read_environment().rank) return bench(argc, argv);
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> command{(self.parent_path() / "convoyrun").string(),
                                   "-n",
                                   std::to_string(flags.ranks),
                                   "--bind-to",
                                   "core",
                                   "--quiet",
                                   "--",
                                   self.string()};
  command.insert(command.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (auto& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(pointers.front(), pointers.data());
  convoy::throw_system_error("starting " + command.front(), errno);
}

}  // namespace

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, run); }
