// One client of the control server: a non-blocking socket with a frame decoder and an output queue.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"
#include "convoy/control/frame.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// What the server thinks of a connection. Begins as kGreeting.
enum class ConnectionState {
  kGreeting,  ///< Has not said a whole hello.
  kRank,      ///< Carries a rank's session.
  kReporter,  ///< Will carry one failure report.
  kLeaving,   ///< Has said all it had to say; nothing but the end of the stream may follow.
};

/// Not thread-safe.
class Connection {
 public:
  Connection(Fd socket, pid_t pid, Deadline hello_deadline);

  int fd() const noexcept { return socket_.get(); }
  pid_t pid() const noexcept { return pid_; }
  ConnectionState state() const noexcept { return state_; }
  int rank() const noexcept { return rank_; }
  Deadline hello_deadline() const noexcept { return hello_deadline_; }

  /// The checked changes of state: greeting -> rank or reporter -> leaving.
  void become_rank(int rank);
  void become_reporter(int rank);
  void become_leaving();

  enum class ReadResult { kDrained, kMore, kEnded };
  /// Takes what has come, at most `budget` bytes of it. kMore: there may be more.
  ReadResult read(std::size_t budget);
  /// The next whole frame. Error: kProtocol.
  std::optional<Frame> next_frame() { return decoder_.next(); }

  /// Queues a frame and sends what the socket takes. False if the peer is gone.
  bool send(FrameType type, std::uint32_t request, std::string_view payload, int passed_fd = -1);
  /// Sends what the socket takes of the queue. False if the peer is gone.
  bool flush();
  bool has_output() const noexcept { return sent_ < output_.size(); }
  /// A client that does not read its answers gets no new requests read.
  bool is_clogged() const noexcept { return output_.size() - sent_ > kMaxOutputBytes; }

 private:
  static constexpr std::size_t kMaxOutputBytes = 2 * kMaxFrameBytes;
  void enter(ConnectionState to);

  Fd socket_;
  pid_t pid_;
  ConnectionState state_ = ConnectionState::kGreeting;
  int rank_ = -1;
  Deadline hello_deadline_;
  FrameDecoder decoder_{kMaxHelloBytes};
  std::string output_;
  std::size_t sent_ = 0;
};

}  // namespace convoy
