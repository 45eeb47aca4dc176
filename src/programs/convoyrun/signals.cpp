// Blocks, names and restores signals.
#include "programs/convoyrun/signals.h"

#include "convoy/base/check.h"

#include <array>
#include <cstring>

#include <pthread.h>

namespace convoy::launcher {

namespace {

constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kNoticeSignals{SIGUSR1, SIGUSR2};

}  // namespace

std::string signal_name(int signal_number) {
  const char* abbreviation = sigabbrev_np(signal_number);
  if (abbreviation == nullptr) return concat("signal ", signal_number);
  return concat("SIG", abbreviation);
}

std::span<const int> stop_signals() noexcept { return kStopSignals; }
std::span<const int> notice_signals() noexcept { return kNoticeSignals; }

sigset_t take_signals() {
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  const bool hangup_ignored = hangup.sa_handler == SIG_IGN;

  sigset_t taken;
  sigemptyset(&taken);
  const auto take = [&](int signal_number) {
    if (signal_number == SIGHUP && hangup_ignored) return;
    ::signal(signal_number, SIG_DFL);
    sigaddset(&taken, signal_number);
  };
  for (const int s : kStopSignals) take(s);
  for (const int s : kNoticeSignals) take(s);
  // An inherited SIG_IGN here would make the kernel reap the ranks and lose their exit codes.
  take(SIGCHLD);
  ::signal(SIGPIPE, SIG_IGN);

  sigset_t before;
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &taken, &before)) {
    throw_system_error("cannot block signals", error);
  }
  return before;
}

void give_back_signals(const sigset_t& mask_before) noexcept {
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask_before, nullptr);
}

}  // namespace convoy::launcher
