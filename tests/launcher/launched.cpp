// Starts, signals and awaits convoyrun.
#include "launcher/launched.h"

#include "convoy/base/check.h"
#include "convoy/base/process.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace convoy::testing {

namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "convoy_launcher_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw_system_error("mkdtemp", errno);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int number_after(const std::string& text, const std::string& word) {
  const auto at = text.find(word + " ");
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + word.size() + 1);
}

bool is_alive(pid_t pid) {
  const auto status = read_process_status(pid);
  return status && !status->is_ended();
}

Launched::Launched(std::vector<std::string> arguments, Options options) {
  arguments.insert(arguments.begin(), CONVOYRUN_PATH);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const Fd out(
      ::open(folder_.path("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const Fd err(
      ::open(folder_.path("err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : options.cores) CPU_SET(core, &cores);
  begin_ = std::chrono::steady_clock::now();
  pid_ = ::fork();
  if (pid_ < 0) throw_system_error("fork", errno);
  if (pid_ == 0) {
    ::dup2(out.get(), STDOUT_FILENO);
    ::dup2(options.is_merged ? out.get() : err.get(), STDERR_FILENO);
    if (!options.cores.empty()) ::sched_setaffinity(0, sizeof(cores), &cores);
    if (options.ignored_signal) ::signal(*options.ignored_signal, SIG_IGN);
    for (const auto& [name, value] : options.environment) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
    ::execv(pointers[0], pointers.data());
    std::_Exit(99);
  }
}

Launched::~Launched() {
  if (code_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Launched::signal(int signal_number) const { ::kill(pid_, signal_number); }

int Launched::wait(Seconds limit) {
  if (code_) return *code_;
  const Fd process = open_pidfd(pid_);
  pollfd ended{process.get(), POLLIN, 0};
  if (::poll(&ended, 1, static_cast<int>(limit.count() * 1000)) != 1) {
    throw std::runtime_error(concat("convoyrun has not ended within ", limit.count(),
                                    " s; stdout:\n", out(), "stderr:\n", err()));
  }
  duration_ = std::chrono::steady_clock::now() - begin_;
  int status = 0;
  rusage usage{};
  ::wait4(pid_, &status, 0, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  cpu_time_ = Seconds(seconds(usage.ru_utime) + seconds(usage.ru_stime));
  code_ = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  return *code_;
}

void Launched::wait_for_out(const std::string& text, int times, Seconds limit) const {
  const auto wanted = static_cast<std::size_t>(times);
  if (!becomes_true([&] { return count_of(out(), text) >= wanted; }, limit)) {
    throw std::runtime_error(concat("'", text, "' did not come ", times, " times; stdout:\n", out(),
                                    "stderr:\n", err()));
  }
}

void Launched::wait_for_err(const std::string& text, Seconds limit) const {
  if (!becomes_true([&] { return count_of(err(), text) > 0; }, limit)) {
    throw std::runtime_error(
        concat("'", text, "' did not come; stdout:\n", out(), "stderr:\n", err()));
  }
}

std::string worker() { return LAUNCHER_WORKER_PATH; }

std::vector<std::string> with_worker(std::vector<std::string> flags,
                                     std::vector<std::string> steps) {
  flags.push_back(worker());
  flags.insert(flags.end(), steps.begin(), steps.end());
  return flags;
}

}  // namespace convoy::testing
