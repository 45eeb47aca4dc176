// Looks whether the peers of a group are alive.
#include "comm/host/liveness.h"

#include "comm/host/explain.h"
#include "convoy/base/process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <unistd.h>

namespace convoy {
namespace {

using std::chrono::milliseconds;

constexpr auto kEndLook = milliseconds(50);
constexpr auto kStopLook = milliseconds(500);
constexpr auto kStopWarning = milliseconds(1000);
constexpr auto kStopError = milliseconds(5000);

// Kernels and sandboxes without pidfds: a signal of 0 asks as well, if less surely.
Fd try_open_pidfd(pid_t pid) {
  try {
    return open_pidfd(pid);
  } catch (const Error&) {
    return Fd();
  }
}

bool has_ended(pid_t pid, const Fd& pidfd) {
  if (!pidfd) {
    const auto status = read_process_status(pid);
    return (::kill(pid, 0) != 0 && errno == ESRCH) || (status && status->is_ended());
  }
  pollfd waiting{pidfd.get(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

}  // namespace

Liveness::Liveness(const HostGroup& group, Logger log)
    : group_(group),
      log_(std::move(log)),
      last_end_look_(Clock::now()),
      last_stop_look_(Clock::now()) {
  for (int r = 0; r < group.size(); ++r) {
    const auto pid = group.block(r).pid.load();
    if (pid == ::getpid()) continue;
    peers_.push_back({r, pid, try_open_pidfd(pid)});
  }
}

std::optional<Error> Liveness::look(const OpHeader& op) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now - last_end_look_ < kEndLook) return std::nullopt;
  last_end_look_ = now;
  if (auto error = look_for_ended(op)) return error;
  const auto passed = now - last_stop_look_;
  if (passed < kStopLook) return std::nullopt;
  last_stop_look_ = now;
  return look_for_stopped(op, passed);
}

std::optional<Error> Liveness::look_for_ended(const OpHeader& op) {
  for (const auto& peer : peers_) {
    if (!has_ended(peer.pid, peer.pidfd)) continue;
    // Leaving comes before ending, so this order of looks does not take a clean end for a crash.
    if (group_.has_left(peer.rank)) continue;
    return explain_lost(group_, peer.rank,
                        "has ended without leaving the group (killed, crashed or exited)", op);
  }
  return std::nullopt;
}

std::optional<Error> Liveness::look_for_stopped(const OpHeader& op,
                                                std::chrono::nanoseconds passed) {
  for (auto& peer : peers_) {
    const auto status = read_process_status(peer.pid);
    // 't', stopped by a debugger, is left to the operation's time limit: somebody is at work there.
    if (group_.has_left(peer.rank) || !status || status->state != 'T') {
      peer.stopped = {};
      peer.is_warned = false;
      continue;
    }
    // Only time in which this rank itself ran counts: after Ctrl-Z and fg all ranks were stopped.
    peer.stopped += std::min<std::chrono::nanoseconds>(passed, 2 * kStopLook);
    if (peer.stopped >= kStopError) {
      return explain_lost(group_, peer.rank, "is stopped (state T: SIGSTOP or Ctrl-Z)", op);
    }
    if (peer.stopped >= kStopWarning && !peer.is_warned) {
      peer.is_warned = true;
      log_.warn(name_rank(group_, peer.rank),
                " is stopped (state T: SIGSTOP or Ctrl-Z); the group fails if it stays so");
    }
  }
  return std::nullopt;
}

}  // namespace convoy
