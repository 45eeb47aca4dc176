// Names of signals, and the set of signals that the launcher takes and passes on.
#pragma once

#include <span>
#include <string>

#include <signal.h>

namespace convoy::launcher {

/// "SIGSEGV" for 11; "signal 77" for a number without a name.
std::string signal_name(int signal_number);

/// Signals that ask the job to end: passed on, then followed by SIGKILL after the grace time.
std::span<const int> stop_signals() noexcept;
/// Signals that are passed on and mean nothing to the launcher itself.
std::span<const int> notice_signals() noexcept;

/// Blocks the launcher's signals and SIGCHLD for this process, so that a signalfd can take them,
/// and ignores SIGPIPE. Dispositions are set back to default first, because a shell starts
/// background jobs with SIGINT ignored and an ignored signal reaches no signalfd; only an ignored
/// SIGHUP stays ignored, which is what nohup asks for. Returns the mask that was there before.
sigset_t take_signals();

/// In a child between fork and exec: undoes take_signals(). Async-signal-safe.
void give_back_signals(const sigset_t& mask_before) noexcept;

}  // namespace convoy::launcher
