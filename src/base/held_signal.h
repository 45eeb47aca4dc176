// Holds back SIGXFSZ while a file may grow beyond RLIMIT_FSIZE.
#pragma once

#include <csignal>
#include <ctime>

namespace convoy {

/// Blocks SIGXFSZ in this thread and swallows one that came meanwhile: its default action would end
/// the process before it can see the error code. One that was pending before is left alone.
class FileSizeSignalHeld {
 public:
  FileSizeSignalHeld() noexcept {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalHeld() {
    const timespec no_wait{};
    while (!was_pending_ && sigtimedwait(&signal_, nullptr, &no_wait) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalHeld(const FileSizeSignalHeld&) = delete;
  FileSizeSignalHeld& operator=(const FileSizeSignalHeld&) = delete;

 private:
  bool was_pending_ = false;
  sigset_t signal_{};
  sigset_t before_{};
};

}  // namespace convoy
