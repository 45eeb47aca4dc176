// A signalfd in the event loop.
#include "programs/convoyrun/signal_source.h"

#include "convoy/base/error.h"
#include "programs/convoyrun/signals.h"

#include <cerrno>

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace convoy::launcher {

SignalSource::SignalSource(EventLoop& loop, std::function<void(int)> on_signal) : loop_(loop) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int s : stop_signals()) sigaddset(&wanted, s);
  for (const int s : notice_signals()) sigaddset(&wanted, s);
  sigaddset(&wanted, SIGCHLD);
  fd_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw_system_error("cannot make a signalfd", errno);
  loop_.add(fd_.get(), EPOLLIN, [this, on_signal = std::move(on_signal)](std::uint32_t) {
    signalfd_siginfo info;
    while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      on_signal(static_cast<int>(info.ssi_signo));
    }
  });
}

SignalSource::~SignalSource() { loop_.remove(fd_.get()); }

}  // namespace convoy::launcher
