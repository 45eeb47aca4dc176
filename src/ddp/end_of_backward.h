// Tells whether the backward that is running ended well or with an exception.
#pragma once

#include <memory>

namespace convoy::ddp {

/// Gets exactly one of the two calls for each watched backward, in the thread that runs it.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// Every node has run. May throw: backward then ends with that exception.
  virtual void on_backward_end() = 0;
  /// A node or hook has thrown; its exception is on its way to the caller.
  virtual void on_backward_failed() noexcept = 0;
};

/// Watches the graph task that is running in this thread. Call it from a hook.
///
/// The engine runs its final callbacks only after success, and destroys them in any case before the
/// caller sees how backward ended. So the callback owns a token, and a token that is destroyed
/// before it was used means failure.
void watch_backward(std::weak_ptr<BackwardListener> listener);

}  // namespace convoy::ddp
