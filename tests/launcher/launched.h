// Runs convoyrun as a user does: as a process, with signals, and with its output in files.
#pragma once

#include "convoy/base/fd.h"

#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <time.h>

namespace convoy::testing {

using Seconds = std::chrono::duration<double>;

/// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);
/// The number behind the first "word " in text, or -1.
int number_after(const std::string& text, const std::string& word);
/// True as long as there is a process `pid` that is not a zombie.
bool is_alive(pid_t pid);
/// Waits until `condition` holds, at most `limit`; returns whether it does.
template <typename Condition>
bool becomes_true(Condition condition, Seconds limit);

struct LaunchOptions {
  /// Changes of the environment; nothing means unset.
  std::map<std::string, std::optional<std::string>> environment{};
  bool is_merged = false;               ///< 2>&1
  std::vector<int> cores{};             ///< Affinity mask; empty: unchanged.
  std::optional<int> ignored_signal{};  ///< Ignored when convoyrun starts.
};

/// One run of convoyrun. Kills it if it is still there at the end.
class Launched {
 public:
  using Options = LaunchOptions;
  explicit Launched(std::vector<std::string> arguments, Options options = {});
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void signal(int signal_number) const;
  /// The exit code, or 1000 + signal. Throws when it has not ended within `limit`.
  int wait(Seconds limit = Seconds(20));
  /// From start to end.
  Seconds duration() const noexcept { return duration_; }
  /// Processor time of convoyrun and its ranks, after wait().
  Seconds cpu_time() const noexcept { return cpu_time_; }

  std::string out() const { return read_file(folder_.path("out")); }
  std::string err() const { return read_file(folder_.path("err")); }
  /// Waits until stdout holds `text` `times` times. Throws when it does not within `limit`.
  void wait_for_out(const std::string& text, int times = 1, Seconds limit = Seconds(20)) const;
  void wait_for_err(const std::string& text, Seconds limit = Seconds(20)) const;

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point begin_;
  std::optional<int> code_;
  Seconds duration_{};
  Seconds cpu_time_{};
};

/// Path of the worker program.
std::string worker();
/// Arguments for convoyrun: its flags, the worker, the worker's steps.
std::vector<std::string> with_worker(std::vector<std::string> flags,
                                     std::vector<std::string> steps);

template <typename Condition>
bool becomes_true(Condition condition, Seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const timespec pause{0, 5'000'000};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace convoy::testing
