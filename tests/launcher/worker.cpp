// A rank for the launcher's tests: does the steps that its arguments name, one after the other.
//
//   [RANKS@]STEP[:VALUE[:VALUE...]]     RANKS: "2", "0,1" or "!2" (all but 2)
#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/rendezvous/guarded_main.h"
#include "convoy/rendezvous/job.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using Values = std::vector<std::string>;

volatile std::sig_atomic_t signals_seen = 0;
volatile std::sig_atomic_t stop_requested = 0;
std::chrono::nanoseconds linger_time{};

Values split(const std::string& text, char at) {
  Values parts{""};
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

int number(const std::string& text) {
  const auto value = convoy::parse_int(text);
  if (!value) throw std::runtime_error("not a number: " + text);
  return static_cast<int>(*value);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto count = ::write(fd, bytes.data(), bytes.size());
    if (count <= 0) std::_Exit(99);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void sleep_for(const std::string& duration) {
  const auto end = std::chrono::steady_clock::now() + convoy::parse_duration(duration).value();
  while (std::chrono::steady_clock::now() < end && !stop_requested)
    std::this_thread::sleep_for(5ms);
}

// Line `i` of `rank`: 200 bytes with the newline, different for every rank and line.
std::string pattern_line(int rank, int i) {
  std::string line = convoy::concat("rank ", rank, " line ", i, " ");
  while (line.size() < 199) line += static_cast<char>('a' + (line.size() + i + rank) % 26);
  return line + "\n";
}

// Many lines in writes of odd sizes, one line of 1 MiB, updates with '\r', no newline at the end.
void write_pattern(int rank, int lines) {
  std::string all;
  for (int i = 0; i < lines; ++i) all += pattern_line(rank, i);
  all += std::string(1 << 20, static_cast<char>('A' + rank)) + "\n";
  for (int i = 0; i < 20; ++i) all += convoy::concat("\rupdate ", i, " of ", rank);
  all += convoy::concat("\nlast of ", rank);
  const std::string_view bytes = all;
  std::size_t size = 1;
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    size = (size * 31 + 17) % 4099 + 1;
    write_all(STDOUT_FILENO, bytes.substr(at, size));
  }
}

// Starts a child that sleeps for a minute; prints its pid. "group": in the rank's group; "session":
// in one of its own, as a daemon.
void start_child(const std::string& how) {
  std::cout.flush();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid > 0) {
    std::cout << "child " << pid << std::endl;
    return;
  }
  if (how == "session") {
    ::setsid();
    if (::fork() > 0) std::_Exit(0);
    std::cout << "daemon " << ::getpid() << std::endl;
  }
  std::this_thread::sleep_for(60s);
  std::_Exit(0);
}

// On SIGTERM: half a file, a pause, the other half, exit 0.
void save_on_term(const std::string& path, const std::string& pause) {
  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  std::cout << "ready" << std::endl;
  while (!stop_requested) std::this_thread::sleep_for(5ms);
  std::ofstream file(path);
  file << "first half," << std::flush;
  std::this_thread::sleep_for(convoy::parse_duration(pause).value());
  file << "second half" << std::flush;
  std::exit(0);
}

// Counts its arrival and waits for all others, in the store.
void barrier(convoy::Job& job, const std::string& name) {
  const auto deadline = convoy::Deadline::after(60s);
  if (job.store()->add(name + "/count", 1) == job.world_size()) {
    job.store()->set(name + "/open", "1");
  }
  job.session()->mark_operation("barrier", 1, name);
  job.store()->get(name + "/open", deadline);
  job.session()->mark_operation("", 1, "");
}

void print_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::cout << "cores";
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) std::cout << " " << core;
  }
  std::cout << std::endl;
}

// Waits for what other ranks do until the job fails, and then says so in its own words.
void wait_for_failure(convoy::Job& job) {
  for (int i = 0; i < 12000; ++i) {
    if (const auto failure = job.session()->failure()) throw *failure;
    std::this_thread::sleep_for(5ms);
  }
  throw std::runtime_error("no failure in 60 s");
}

class Worker {
 public:
  explicit Worker(int rank) : rank_(rank) {
    const auto job = [this]() -> convoy::Job& {
      if (!job_) job_.emplace(convoy::Job::from_environment());
      return *job_;
    };
    steps_["out"] = [](const Values& v) { std::cout << v.at(1) << std::endl; };
    steps_["err"] = [](const Values& v) { std::cerr << v.at(1) << std::endl; };
    steps_["part"] = [](const Values& v) { write_all(STDOUT_FILENO, v.at(1)); };
    steps_["errs"] = [](const Values& v) {
      for (int i = 0; i < number(v.at(1)); ++i) std::cerr << "stderr line " << i << "\n";
    };
    steps_["pattern"] = [this](const Values& v) { write_pattern(rank_, number(v.at(1))); };
    steps_["env"] = [](const Values& v) {
      std::cout << v.at(1) << "=" << variable(v.at(1).c_str()) << std::endl;
    };
    steps_["pid"] = [](const Values&) { std::cout << "pid " << ::getpid() << std::endl; };
    steps_["name"] = [](const Values& v) { ::prctl(PR_SET_NAME, v.at(1).c_str()); };
    steps_["cores"] = [](const Values&) { print_cores(); };
    steps_["sleep"] = [](const Values& v) { sleep_for(v.at(1)); };
    steps_["linger"] = [](const Values& v) {  // Between main's return and the end.
      linger_time = convoy::parse_duration(v.at(1)).value();
      std::atexit([] { std::this_thread::sleep_for(linger_time); });
    };
    steps_["exit"] = [](const Values& v) { std::_Exit(number(v.at(1))); };
    steps_["raise"] = [](const Values& v) { ::raise(number(v.at(1))); };
    steps_["ignore"] = [](const Values& v) { std::signal(number(v.at(1)), SIG_IGN); };
    steps_["count"] = [](const Values& v) {
      std::signal(number(v.at(1)), [](int) { signals_seen = signals_seen + 1; });
    };
    steps_["await"] = [](const Values& v) {
      while (signals_seen == 0) std::this_thread::sleep_for(5ms);
      std::cout << "took " << v.at(1) << std::endl;
    };
    steps_["child"] = [](const Values& v) { start_child(v.at(1)); };
    steps_["save"] = [](const Values& v) { save_on_term(v.at(1) + variable("RANK"), v.at(2)); };
    steps_["join"] = [job](const Values&) { job(); };
    steps_["mark"] = [job](const Values& v) {
      job().session()->mark_operation(v.at(1), static_cast<std::uint64_t>(number(v.at(2))),
                                      v.at(3));
    };
    steps_["throw"] = [](const Values& v) { throw std::runtime_error(v.at(1)); };
    steps_["barrier"] = [job](const Values& v) { barrier(job(), v.at(1)); };
    steps_["failure"] = [job](const Values&) { wait_for_failure(job()); };
    steps_["leave"] = [this](const Values&) { job_.reset(); };
  }

  void run(const std::string& text) {
    std::string step = text;
    if (const auto at = text.find('@'); at != std::string::npos) {
      if (!names_me(text.substr(0, at))) return;
      step = text.substr(at + 1);
    }
    const Values values = split(step, ':');
    const auto found = steps_.find(values[0]);
    if (found == steps_.end()) throw std::runtime_error("unknown step " + values[0]);
    found->second(values);
  }

 private:
  bool names_me(std::string ranks) const {
    const bool is_inverted = ranks.starts_with('!');
    if (is_inverted) ranks.erase(0, 1);
    bool is_named = false;
    for (const auto& rank : split(ranks, ',')) is_named |= number(rank) == rank_;
    return is_named != is_inverted;
  }

  int rank_;
  std::optional<convoy::Job> job_;
  std::map<std::string, std::function<void(const Values&)>> steps_;
};

int work(int argc, char** argv) {
  const auto rank = variable("RANK");
  Worker worker(rank.empty() ? 0 : number(rank));
  for (int i = 1; i < argc; ++i) worker.run(argv[i]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, work); }
