// The program that process tests start: one rank of a job, which does what its first argument says.
#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/rendezvous/guarded_main.h"
#include "convoy/rendezvous/job.h"
#include "core/load.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace convoy;

std::string argument(int argc, char** argv, int index) {
  CONVOY_REQUIRE(index < argc, kInvalidArgument, "argument ", index, " is missing");
  return argv[index];
}

int number(int argc, char** argv, int index) {
  const auto text = argument(argc, argv, index);
  const auto value = parse_int(text);
  CONVOY_REQUIRE(value.has_value(), kInvalidArgument, "'", text, "' is no number");
  return static_cast<int>(*value);
}

// Says to the test that this rank has come so far.
void announce(const Job& job, const std::string& what) {
  job.store()->set(concat(what, "/", job.rank()), "");
}

long faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

std::string huge_pages() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    if (word == "AnonHugePages:" && file >> word) return word;
  }
  return "?";
}

// Takes and frees a large block twice.
void use_memory() {
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  for (const char* round : {"first", "second"}) {
    const long before = faults();
    const std::unique_ptr<char[], decltype(&std::free)> block(
        static_cast<char*>(std::malloc(kBytes)), &std::free);
    for (std::size_t at = 0; at < kBytes; at += 4096) {
      const_cast<volatile char*>(block.get())[at] = 1;
    }
    std::printf("%s %ld faults %s kB huge\n", round, faults() - before, huge_pages().c_str());
  }
}

int run(int argc, char** argv) {
  const auto mode = argument(argc, argv, 1);
  if (mode == "bad-input") {
    throw Error(ErrorKind::kInvalidArgument, "no such file: /nowhere");
  }
  if (mode == "memory") {
    use_memory();
    return 0;
  }
  const auto job = Job::from_environment();
  const auto forever = Deadline::after(std::chrono::seconds(60));
  if (mode == "who") {
    std::printf("rank %d of %d, local %d of %d, run %s, generation %ld\n", job.rank(),
                job.world_size(), job.local_rank(), job.local_world_size(), job.run_id().c_str(),
                static_cast<long>(job.generation()));
  } else if (mode == "random") {
    test::run_random_operations(*job.store(), job.rank(), job.world_size(),
                                std::stoull(argument(argc, argv, 2)), number(argc, argv, 3));
  } else if (mode == "end-after") {
    // Meets the others, then ends without any explicit shutdown, each at its own time.
    announce(job, "here");
    for (int rank = 0; rank < job.world_size(); ++rank) {
      job.store()->get(concat("here/", rank), forever);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(number(argc, argv, 2 + job.rank())));
  } else if (mode == "mark-and-wait") {
    job.session()->mark_operation("all_reduce", 51, "layer3");
    announce(job, "marked");
    job.store()->get("never", forever);
  } else if (mode == "wait") {
    announce(job, "waiting");
    job.store()->get("never", forever);
  } else if (mode == "throw") {
    throw std::runtime_error("the model\nexploded\nException raised from f at f.cpp:1 (trace)");
  } else if (mode == "throw-odd") {
    throw 42;
  } else if (mode == "bad-alloc") {
    throw std::bad_alloc();
  } else if (mode == "exit") {
    std::exit(number(argc, argv, 2));  // No destructor of the job runs.
  } else if (mode == "fork") {
    // A child that ends like a program must not speak for its parent.
    if (const pid_t child = ::fork(); child == 0) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    job.store()->set("parent", "still here");
  } else {
    throw Error(ErrorKind::kInvalidArgument, concat("unknown mode '", mode, "'"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, run); }
