// Unix sockets that carry whole messages and descriptors.
#include "comm/host/packet_socket.h"

#include "convoy/base/check.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace convoy {
namespace {

std::string random_name() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_system_error("drawing a random socket name", errno);
  }
  std::string name = "convoy-comm-";
  for (const auto byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CONVOY_REQUIRE(name.size() + 1 < sizeof(address.sun_path), kProtocol, "socket name too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

Fd make_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_system_error("making a Unix socket", errno);
  return socket;
}

std::optional<ucred> credentials(const Fd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

bool is_same_user(const Fd& socket) {
  const auto peer = credentials(socket);
  return peer && peer->uid == ::geteuid();
}

}  // namespace

PacketListener listen_for_packets() {
  PacketListener listener{make_socket(), random_name()};
  const auto [address, size] = abstract_address(listener.name);
  if (::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(listener.socket.get(), SOMAXCONN) != 0) {
    throw_system_error("listening on a Unix socket", errno);
  }
  return listener;
}

std::optional<Fd> accept_packet_socket(const Fd& listener) {
  for (;;) {
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return std::nullopt;
      throw_system_error("accepting a peer (look at the limit of open files, ulimit -n)", errno);
    }
    if (is_same_user(socket)) return socket;
  }
}

std::optional<Fd> connect_packet_socket(const std::string& name) {
  Fd socket = make_socket();
  const auto [address, size] = abstract_address(name);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    // Refused: the listener is gone. Again: its queue is full. The caller tries later.
    if (errno == ECONNREFUSED || errno == EAGAIN) return std::nullopt;
    if (errno != EINTR) throw_system_error("connecting to rank 0", errno);
  }
  CONVOY_REQUIRE(is_same_user(socket), kProtocol, "the socket of rank 0 belongs to another user");
  return socket;
}

pid_t peer_pid(const Fd& socket) {
  const auto peer = credentials(socket);
  return peer ? peer->pid : -1;
}

bool send_packet(const Fd& socket, const void* data, std::size_t bytes, int passed_fd) noexcept {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (passed_fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed_fd, sizeof passed_fd);
  }
  for (;;) {
    const auto sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 || errno != EINTR) return std::cmp_equal(sent, bytes);
  }
}

Packet receive_packet(const Fd& socket, void* data, std::size_t bytes) noexcept {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 4)> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Packet packet;
  for (auto* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const auto count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      packet.passed_fd.reset(fd);  // Only the last is kept, the others are closed.
    }
  }
  if (got < 0) {
    packet.kind = errno == EAGAIN ? Packet::Kind::kNone : Packet::Kind::kEnd;
  } else {
    const bool is_whole = got > 0 && (message.msg_flags & MSG_TRUNC) == 0;
    packet.kind = is_whole ? Packet::Kind::kMessage : Packet::Kind::kEnd;
    packet.bytes = is_whole ? static_cast<std::size_t>(got) : 0;
  }
  return packet;
}

}  // namespace convoy
