// A rank's connection to the control server: requests from any thread, one thread that takes
// answers.
#pragma once

#include "control/failure_latch.h"
#include "control/messages.h"
#include "control/request_table.h"
#include "convoy/control/channel.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace convoy {

/// Thread-safe. close() and the destructor must not run in a failure callback.
class ControlLink {
 public:
  /// Takes an accepted connection and starts the reading thread, in which all signals are blocked:
  /// a program's handlers run in its own threads. `answer_timeout` bounds sending, and the answers
  /// of requests that do not wait for other ranks.
  ControlLink(Channel channel, int world_size, std::chrono::nanoseconds answer_timeout);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  /// A request that the server answers at once. Throws the answer's error, if it is one.
  /// Errors: kPeerLost (the server is gone), kTimeout (it does not answer), kMisuse (closed).
  Reply call(FrameType type, std::string_view payload);
  /// A request that waits for others. Until `deadline`, or until the job fails, it waits; then the
  /// server is told to end it, and the answer is kUnfulfilled with the facts, unless it was
  /// fulfilled just then. Errors as call().
  Reply call_waiting(FrameType type, std::string_view payload, Deadline deadline);
  /// A message without an answer.
  void post(FrameType type, std::string_view payload);

  /// Says goodbye, waits shortly for the answer, and ends the reading thread. Later calls throw.
  void close(bool is_unwinding) noexcept;

  FailureLatch& failure() noexcept { return failure_; }
  const FailureLatch& failure() const noexcept { return failure_; }
  std::vector<int> left_ranks() const;

 private:
  void send(FrameType type, std::uint32_t request, std::string_view payload);
  void read_until_end();
  void take(const Frame& frame);
  void lose(const Error& cause);
  void end_reading() noexcept;

  Channel channel_;
  std::chrono::nanoseconds answer_timeout_;
  pid_t owner_;  // After a fork the copy in the child must leave the connection alone.
  std::atomic<bool> is_closing_{false};
  std::mutex send_mutex_;
  RequestTable requests_;
  FailureLatch failure_;
  mutable std::mutex membership_mutex_;
  std::vector<bool> has_left_;
  std::thread reader_;
};

}  // namespace convoy
