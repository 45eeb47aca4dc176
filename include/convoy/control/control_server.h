// The launcher's end of the control channel: store, membership and first failure of one job.
#pragma once

#include "convoy/base/error.h"
#include "convoy/control/failure_report.h"
#include "convoy/control/job_page.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace convoy {

/// How a rank's connection ended.
enum class Departure {
  kFinished,   ///< It said goodbye at its normal end.
  kUnwinding,  ///< It said goodbye while an exception was unwinding its stack; a report may follow.
  kVanished,   ///< The connection ended without a goodbye: killed, crashed, or exit() was called.
};

struct ControlServerOptions {
  /// "unix:@name" or "unix:/path"; empty means an abstract name that nobody can guess.
  std::string address;
  int world_size = 1;
  std::string run_id;
  std::int64_t generation = 0;
  /// Connections of any other user are closed.
  uid_t user;
  /// A connection that has not said a whole hello by then is closed; so is one that announced a
  /// report.
  std::chrono::milliseconds hello_timeout{2000};
  /// Connections whose hello or report may be outstanding; one more closes the oldest of them.
  int max_half_open = 64;
  /// How long a report waits for other ranks' reports before it is decided who prints.
  std::chrono::milliseconds report_grace{500};

  ControlServerOptions();  ///< user = the effective user of this process.
};

/// Called from process(), in its thread. Any may be empty. They may call abort() and the queries,
/// and must not call process() or destroy the server.
struct ControlServerEvents {
  /// A rank has joined. `pid` is what the kernel says, which may be a descendant of the process
  /// that the launcher started.
  std::function<void(int rank, pid_t pid)> on_hello;
  /// A rank's session has ended. Its process may live on.
  std::function<void(int rank, Departure how)> on_departure;
  /// A rank says it failed. The first report has by then been sent to all ranks as the failure.
  std::function<void(const FailureReport& report)> on_report;
  /// A connection was refused; one line that says why (wrong user, junk, duplicate rank, ...).
  std::function<void(const std::string& reason)> on_refused;
};

/// Serves the control channel of one job without threads and without blocking: the owner watches
/// epoll_fd() in its own loop and calls process() when it is readable. Time limits are kept by a
/// timer inside, so nothing else has to be called. What a connection sends, or does not send, can
/// close that connection and does nothing to the others. Thread rule: one thread. The ranks lose
/// their session when the server is destroyed.
class ControlServer {
 public:
  /// Listens at once. Errors: kInvalidArgument, kMemory, kSystem.
  explicit ControlServer(ControlServerOptions options, ControlServerEvents events = {});
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// For the ranks' CONVOY_CONTROL, for example "unix:@convoy-4f...".
  const std::string& address() const noexcept;
  /// Readable when process() has something to do. Fits into another epoll, poll or select.
  int epoll_fd() const noexcept;
  /// Does what is ready now, a bounded amount of it, and returns. Never waits.
  void process();

  /// Fails the job: the first failure is sent to all ranks, now and whenever one joins later.
  /// Further failures change nothing. `failure.rank()` is the world rank to blame, or -1.
  void abort(const Error& failure);
  /// The launcher has seen the process of `rank` end. Ranks waiting for it to report or to finish
  /// stop waiting.
  void mark_exited(int rank);

  /// The first failure, from abort() or a report.
  const std::optional<Error>& failure() const noexcept;
  /// All reports in order of arrival; root_cause() picks the one that explains the others.
  const std::vector<FailureReport>& reports() const noexcept;
  /// Ranks that have never joined, in order.
  std::vector<int> missing_ranks() const;
  /// Ranks whose session has ended or whose process has exited, in order.
  std::vector<int> left_ranks() const;
  /// Ranks that are inside a blocking request (get, wait, finish) now, in order.
  std::vector<int> waiting_ranks() const;
  /// Where the ranks say what they do.
  const JobPage& page() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
