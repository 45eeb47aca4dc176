// The two meetings around the time in which owners write.
#include "write_window.h"

namespace convoy::fsdp {

bool WriteWindow::enter() {
  if (entering_) {
    const WorkPtr entering = std::move(entering_);
    entering->wait();
  }
  if (state_ == State::kClosed) return false;
  if (shared_) comm_.barrier({.tag = "FSDP: all have stepped"})->wait();
  state_ = State::kClosed;
  return true;
}

void WriteWindow::leave(bool all_have_left) {
  if (state_ == State::kOpen) return;
  if (shared_ && !all_have_left) comm_.barrier({.tag = "FSDP: all have read"})->wait();
  state_ = State::kOpen;
}

void WriteWindow::enter_for_good() noexcept {
  if (state_ == State::kClosed || !shared_ || comm_.failure()) return;
  try {
    entering_ = comm_.barrier({.tag = "FSDP: all have stepped"});
    state_ = State::kClosed;
  } catch (const Error&) {
    // The group has failed meanwhile; whoever waits for this rank has been told by that failure.
  }
}

}  // namespace convoy::fsdp
