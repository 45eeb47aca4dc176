// epoll and timerfd.
#include "control/poller.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace convoy {
namespace {

constexpr std::uint64_t kTimerId = 0;

}  // namespace

Poller::Poller()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!epoll_ || !timer_) throw_system_error("creating an event loop", errno);
  add(timer_.get(), kTimerId, EPOLLIN);
}

void Poller::add(int fd, std::uint64_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw_system_error("watching a descriptor", errno);
  }
}

void Poller::modify(int fd, std::uint64_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    throw_system_error("watching a descriptor", errno);
  }
}

void Poller::remove(int fd) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<Poller::Event> Poller::poll() {
  std::array<epoll_event, 128> ready;
  const int count =
      ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), /*timeout=*/0);
  if (count < 0 && errno != EINTR) throw_system_error("waiting for events", errno);
  std::vector<Event> events;
  for (int i = 0; i < count; ++i) {
    const auto& event = ready[static_cast<std::size_t>(i)];
    if (event.data.u64 == kTimerId) {
      std::uint64_t expirations = 0;
      [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof(expirations));
      continue;
    }
    events.push_back({event.data.u64, event.events});
  }
  return events;
}

void Poller::set_timer(std::optional<Deadline> when) {
  itimerspec spec{};
  if (when) {
    // steady_clock is CLOCK_MONOTONIC here, so the point in time can be handed over as it is.
    const auto since = std::max<std::int64_t>(when->point().time_since_epoch().count(), 1);
    constexpr std::int64_t kSecond = 1'000'000'000;
    spec.it_value.tv_sec = since / kSecond;
    spec.it_value.tv_nsec = since % kSecond;
  }
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) != 0) {
    throw_system_error("setting a timer", errno);
  }
}

}  // namespace convoy
