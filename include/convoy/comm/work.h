// An operation in flight.
#pragma once

#include "convoy/base/deadline.h"

#include <memory>

namespace convoy {

/// The handle of one collective operation. It keeps the operation's tensors alive until it is done.
/// Done means: the result is here, and this rank's tensors may be changed and freed.
/// Thread rule: one thread at a time. Dropping it unwaited is allowed; the communicator still
/// completes the operation, and its failure fails the communicator.
class Work {
 public:
  virtual ~Work() = default;

  /// Makes progress if it can at once. Never blocks, never throws; a failed operation is completed.
  virtual bool is_completed() = 0;
  /// Blocks until done, at most until the operation's time limit (counted from the call that
  /// started it). Throws the communicator's first failure: the same text on every rank.
  virtual void wait() = 0;
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace convoy
