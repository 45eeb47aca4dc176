// Requests under way: who waits for which answer.
#pragma once

#include "control/messages.h"
#include "convoy/base/deadline.h"
#include "convoy/base/error.h"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace convoy {

/// Callers open a request, send it, and wait; the reading thread delivers. Thread-safe.
class RequestTable {
 public:
  enum class Outcome { kAnswered, kTimedOut, kInterrupted };

  /// A number for a new request, never 0. Error: what lose() was given.
  std::uint32_t open();
  /// Waits for the answer. kInterrupted, only where `can_interrupt`: interrupt() was called, before
  /// or meanwhile. Otherwise the request stays open, and can be waited for again or closed. Error:
  /// what lose() was given.
  Outcome wait(std::uint32_t number, Deadline deadline, bool can_interrupt, Reply& reply);
  /// Forgets a request; its answer, if it still comes, is dropped.
  void close(std::uint32_t number);

  void deliver(std::uint32_t number, Reply reply);
  /// From now on waits that can be interrupted are.
  void interrupt();
  /// No answer will ever come: every wait, now and later, throws `cause`.
  void lose(const Error& cause);

 private:
  struct Pending {
    std::condition_variable changed;
    std::optional<Reply> reply;
  };

  std::mutex mutex_;
  std::map<std::uint32_t, Pending> pending_;
  std::uint32_t next_ = 1;
  bool is_interrupted_ = false;
  std::optional<Error> lost_;
};

}  // namespace convoy
