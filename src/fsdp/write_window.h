// When owners may write their slices in shared memory: between `left` and `entered`.
#pragma once

#include "convoy/comm/communicator.h"

namespace convoy::fsdp {

/// Note [The write window]
/// With the shared gather every rank reads what the others own, so an owner may write only while
/// nobody reads. Each rank goes round: it leaves (at the end of a synchronised backward, when it
/// needs the peers' parameters no more), all having left the window is open and optimizers step; it
/// enters (at the first gather of any kind after that), all having entered the window is closed and
/// gathers read. Both steps wait for all ranks. A backward under no_sync does not leave.
/// With private gathers nothing is read behind an owner's back; the states are kept, nobody waits.
class WriteWindow {
 public:
  enum class State { kOpen, kClosed };

  WriteWindow(Communicator& comm, bool shared) : comm_(comm), shared_(shared) {}

  State state() const noexcept { return state_; }

  /// Closes the window; true if it was open. Waits until every rank has entered.
  bool enter();
  /// Opens the window. `all_have_left` says that the caller has just met all ranks; else this
  /// waits.
  void leave(bool all_have_left);
  /// Says that this rank has entered for good, without waiting: it will not train on, but others
  /// may still read (an evaluation on one rank). Never throws.
  void enter_for_good() noexcept;

 private:
  Communicator& comm_;
  bool shared_;
  State state_ = State::kOpen;
  WorkPtr entering_;  ///< Started and not waited for, by enter_for_good().
};

}  // namespace convoy::fsdp
