// What the tests of base, control and rendezvous share: a server in a thread, and real processes.
#pragma once

#include "convoy/base/check.h"
#include "convoy/base/fd.h"
#include "convoy/control/control_client.h"
#include "convoy/control/control_server.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace convoy::test {

using namespace std::chrono_literals;

/// The Error that `act` throws; fails the test through an exception when it throws none.
/// Usable in any thread.
template <typename Act>
Error error_of(Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("expected an Error, and nothing was thrown");
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Throws unless it holds: for threads, where Catch2's assertions may not be used.
inline void check(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

/// Waits until `condition` holds, at most 10 s. False if it never did.
bool eventually(const std::function<bool()>& condition);

/// A control server served by a thread of its own, in the place of the launcher.
class ServerThread {
 public:
  explicit ServerThread(int world_size, ControlServerOptions options = {});
  ~ServerThread();

  /// Options of rank `rank` of this server's job.
  ControlClientOptions client(int rank) const;
  std::shared_ptr<Session> join(int rank) const { return connect_session(client(rank)); }
  const std::string& address() const { return address_; }

  /// Runs `act` in the server's thread and returns its result.
  template <typename Result>
  Result ask(std::function<Result(ControlServer&)> act) {
    std::optional<Result> result;
    run([&](ControlServer& server) { result.emplace(act(server)); });
    return *result;
  }
  void run(const std::function<void(ControlServer&)>& act);
  /// Ends the server as the launcher's death would.
  void stop();

  /// What the callbacks were told, in order: "hello 0", "finished 0", "report 1: text", "refused:
  /// text".
  std::vector<std::string> events() const;
  bool has_event(std::string_view beginning) const;

 private:
  void note(std::string event);
  void serve();

  ControlServerOptions options_;
  std::unique_ptr<ControlServer> server_;
  std::string address_;
  Fd wake_;
  std::mutex mutex_;  // Held while the server runs.
  mutable std::mutex events_mutex_;
  std::vector<std::string> events_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

/// A program of tests/core that was started, and what it wrote. Killed if it still runs at the end.
class Child {
 public:
  /// Starts core_worker with `arguments`; the environment is this process's without any launch
  /// variables, and with `environment`.
  static Child start(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& environment);
  Child(Child&&) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  void kill(int signal) const;
  /// Waits for the end, at most 30 s. Exit code, or 128 + signal.
  int wait();
  /// Everything it wrote to stdout and stderr. Call it after wait().
  std::string output();

 private:
  Child(pid_t pid, Fd out) : pid_(pid), out_(std::move(out)) {}
  pid_t pid_;
  Fd out_;
  std::optional<int> code_;
};

/// The variables that the launcher gives rank `rank` of the server's job.
std::vector<std::string> launch_variables(const ServerThread& server, int rank);

}  // namespace convoy::test
