// Waits for many descriptors at once and calls the handler of each that is ready.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>

#include <sys/epoll.h>

namespace convoy::launcher {

/// One epoll. Thread rule: one thread. Handlers may add and remove descriptors, their own included.
class EventLoop {
 public:
  using Handler = std::function<void(std::uint32_t events)>;

  /// Error: kSystem.
  EventLoop();

  /// Calls `handler` whenever one of `events` (EPOLLIN, EPOLLOUT) holds for `fd`, or it hung up.
  /// The descriptor stays the caller's, who removes it before closing it. Error: kSystem.
  void add(int fd, std::uint32_t events, Handler handler);
  void remove(int fd);
  bool watches(int fd) const { return token_of_.contains(fd); }

  /// Waits until something is ready or the deadline has come (for ever when there is none), then
  /// calls the handlers of what is ready. Error: kSystem.
  void run_once(std::optional<Deadline> deadline);

 private:
  Fd epoll_;
  // Tokens are never used twice, so an event of this round cannot reach the handler of a new
  // descriptor that got an old number.
  std::uint64_t next_token_ = 1;
  std::unordered_map<int, std::uint64_t> token_of_;
  std::unordered_map<std::uint64_t, Handler> handlers_;
};

}  // namespace convoy::launcher
