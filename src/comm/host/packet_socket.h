// Unix sockets that carry whole messages and descriptors between processes of one user.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"

#include <cstddef>
#include <optional>
#include <string>

#include <sys/types.h>

namespace convoy {

// SOCK_SEQPACKET keeps message borders, so a reader never holds half a message, and a listener that
// serves many peers in one loop needs no buffers.

/// A listening socket with a random abstract name: no file, gone with its owner. Error: kSystem.
struct PacketListener {
  Fd socket;
  std::string name;  ///< For connect_packet_socket.
};
PacketListener listen_for_packets();

/// The next connection of a process of this user, or nothing now; others are closed. Non-blocking.
/// Error: kSystem.
std::optional<Fd> accept_packet_socket(const Fd& listener);

/// Connects to a listener of this user. Nothing if nobody listens there. Errors: kProtocol (another
/// user), kSystem.
std::optional<Fd> connect_packet_socket(const std::string& name);

/// The process at the other end as the kernel knows it, or -1.
pid_t peer_pid(const Fd& socket);

/// Sends one message, with a descriptor if not -1. False if the peer is gone or does not read.
bool send_packet(const Fd& socket, const void* data, std::size_t bytes,
                 int passed_fd = -1) noexcept;

/// What came, in one message.
struct Packet {
  enum class Kind { kNone, kMessage, kEnd };
  Kind kind = Kind::kNone;
  std::size_t bytes = 0;
  Fd passed_fd;
};
/// Takes a waiting message without blocking; one that is longer than `bytes` counts as the end.
Packet receive_packet(const Fd& socket, void* data, std::size_t bytes) noexcept;

}  // namespace convoy
