// Answers the store requests of the control protocol.
#pragma once

#include "control/messages.h"
#include "control/store_table.h"
#include "control/wait_list.h"
#include "convoy/control/frame.h"

#include <functional>
#include <optional>
#include <set>
#include <string>

namespace convoy {

/// The store and those who wait for it. Answers go out through a function, so it knows no sockets.
/// Not thread-safe.
class StoreService {
 public:
  using Answer = std::function<void(RequestId, const Reply&)>;
  explicit StoreService(Answer answer) : answer_(std::move(answer)) {}

  /// True for the frames that serve() takes.
  static bool serves(FrameType type);
  /// Does one request and answers it, now or when its keys appear, together with others that it
  /// fulfils. Error: kProtocol for a request that is malformed or breaks a limit of the protocol.
  void serve(RequestId request, const Frame& frame);
  /// Ends a waiting request: its missing keys, for the answer; nothing if it is not waiting.
  std::optional<std::set<std::string>> cancel(RequestId request);
  /// Forgets what a connection waits for.
  void drop(std::uint64_t connection);
  bool is_waiting(std::uint64_t connection) const { return waits_.count(connection) > 0; }

 private:
  Reply apply(const Frame& frame);
  void wait_for_keys(RequestId request, const Frame& frame);
  void fulfil(std::string_view key);

  Answer answer_;
  StoreTable table_;
  WaitList waits_;
  /// Waiting requests that want the key's value (get, not wait).
  std::set<RequestId> wants_value_;
};

}  // namespace convoy
