// An epoll with handlers.
#include "programs/convoyrun/event_loop.h"

#include "convoy/base/error.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>

namespace convoy::launcher {

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_system_error("cannot make an epoll", errno);
}

void EventLoop::add(int fd, std::uint32_t events, Handler handler) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = next_token_;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw_system_error("cannot watch a descriptor", errno);
  }
  token_of_[fd] = next_token_;
  handlers_.emplace(next_token_++, std::move(handler));
}

void EventLoop::remove(int fd) {
  const auto found = token_of_.find(fd);
  if (found == token_of_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(found->second);
  token_of_.erase(found);
}

void EventLoop::run_once(std::optional<Deadline> deadline) {
  int timeout_ms = -1;
  if (deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline->remaining()).count();
    timeout_ms = static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
  }
  std::array<epoll_event, 64> ready;
  const int count =
      ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout_ms);
  if (count < 0) {
    if (errno == EINTR) return;
    throw_system_error("cannot wait for events", errno);
  }
  for (int i = 0; i < count; ++i) {
    const auto found = handlers_.find(ready[i].data.u64);
    if (found == handlers_.end()) continue;
    // A copy, because the handler may remove itself.
    const Handler handler = found->second;
    handler(ready[i].events);
  }
}

}  // namespace convoy::launcher
