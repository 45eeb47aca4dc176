// Takes the launcher's signals out of the event loop.
#pragma once

#include "convoy/base/fd.h"
#include "programs/convoyrun/event_loop.h"

#include <functional>

namespace convoy::launcher {

/// A signalfd for the signals of take_signals(). Thread rule: one thread.
class SignalSource {
 public:
  /// Error: kSystem.
  SignalSource(EventLoop& loop, std::function<void(int signal_number)> on_signal);
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

 private:
  EventLoop& loop_;
  Fd fd_;
};

}  // namespace convoy::launcher
