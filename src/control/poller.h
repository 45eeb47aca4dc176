// An epoll set with one timer in it, seen from outside as one descriptor.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace convoy {

/// Not thread-safe. Errors of all: kSystem.
class Poller {
 public:
  struct Event {
    std::uint64_t id = 0;
    std::uint32_t events = 0;  ///< EPOLLIN, EPOLLOUT, EPOLLHUP, ...
  };

  Poller();
  /// Readable when poll() would return something or the timer has expired.
  int fd() const noexcept { return epoll_.get(); }
  /// Watches `fd` under a name of the caller's choice, not 0.
  void add(int fd, std::uint64_t id, std::uint32_t events);
  void modify(int fd, std::uint64_t id, std::uint32_t events);
  void remove(int fd) noexcept;
  /// What is ready now, without waiting. An expired timer is taken back and not listed.
  std::vector<Event> poll();
  /// Makes fd() readable at `when`; nothing switches the timer off.
  void set_timer(std::optional<Deadline> when);

 private:
  Fd epoll_;
  Fd timer_;
};

}  // namespace convoy
