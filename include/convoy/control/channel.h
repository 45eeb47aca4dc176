// A stream socket inside one machine: every send and receive has a deadline, the peer's user is
// checked, and descriptors can be handed over.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"
#include "convoy/control/frame.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace convoy {

/// Where a listener is: "unix:@name" (abstract: no file, gone with its owner) or "unix:/path".
struct ControlAddress {
  std::string name;  ///< Without the leading '@' when abstract.
  bool is_abstract = true;

  /// Error: kInvalidArgument naming the text and the two forms it may have.
  static ControlAddress parse(std::string_view text);
  /// An abstract name that nobody can guess: `prefix`, '-' and 128 random bits in hex.
  static ControlAddress random(std::string_view prefix);
  std::string to_string() const;
};

/// The process at the other end, as the kernel knows it (SO_PEERCRED).
struct PeerCredentials {
  pid_t pid = -1;
  uid_t uid = 0;
};

/// One connected stream. The socket is non-blocking and closed on exec.
/// Thread rule: one thread may send while another receives.
class Channel {
 public:
  Channel() = default;
  /// Takes a connected AF_UNIX stream socket.
  explicit Channel(Fd socket);

  /// Connects and checks that the listener runs as this user. Waits while the listener's queue is
  /// full. Errors: kPeerLost (nobody listens there), kTimeout, kProtocol (another user), kSystem.
  static Channel connect(const ControlAddress& address, Deadline deadline);

  int fd() const noexcept { return socket_.get(); }
  PeerCredentials peer() const;

  /// Sends all bytes, and `passed_fd` (if not -1) along with the first of them.
  /// Errors: kPeerLost, kTimeout, kSystem.
  void send(std::string_view bytes, Deadline deadline, int passed_fd = -1);
  /// Receives exactly `size` bytes. A descriptor that comes along is kept for take_fd().
  /// Errors: kPeerLost (also for an end in the middle), kTimeout, kSystem.
  void receive(void* data, std::size_t size, Deadline deadline);
  /// Receives what there is, at least one and at most `size` bytes; 0 is the end of the stream.
  /// Errors: kTimeout, kSystem.
  std::size_t receive_some(void* data, std::size_t size, Deadline deadline);
  void send_frame(FrameType type, std::uint32_t request, std::string_view payload,
                  Deadline deadline, int passed_fd = -1);
  /// Receives one frame with a payload of at most `max_payload` bytes. Also kProtocol.
  Frame receive_frame(Deadline deadline, std::size_t max_payload = kMaxFrameBytes);
  /// The descriptor received last, or none. More than one at a time is not kept.
  Fd take_fd() noexcept { return std::move(received_fd_); }
  /// Gives the socket away, to an event loop for example.
  Fd release() noexcept { return std::move(socket_); }
  /// Ends both directions; the peer and our own reader see the end of the stream.
  void shut_down() noexcept;

 private:
  Fd socket_;
  Fd received_fd_;
};

/// A listening socket of this user. Its queue is as long as the system allows.
class Listener {
 public:
  /// Binds and listens. A path's folder must belong to this user and be closed to others (0700);
  /// the file is removed with the listener. Errors: kInvalidArgument (folder open to others, name
  /// too long), kSystem (in use).
  explicit Listener(const ControlAddress& address);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const noexcept { return socket_.get(); }
  const ControlAddress& address() const noexcept { return address_; }
  /// The next connection if one waits, without blocking and without looking at its user.
  /// Error: kSystem (also when descriptors run out).
  std::optional<Channel> try_accept();
  /// The next connection of this user; connections of other users are closed and passed over.
  /// Errors: kTimeout, kSystem.
  Channel accept(Deadline deadline);

 private:
  Fd socket_;
  ControlAddress address_;
};

}  // namespace convoy
