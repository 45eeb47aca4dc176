// Connecting, sending and receiving with deadlines.
#include "convoy/control/channel.h"

#include "control/unix_socket.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace convoy {

Channel::Channel(Fd socket) : socket_(std::move(socket)) {}

Channel Channel::connect(const ControlAddress& address, Deadline deadline) {
  const auto name = socket_name(address);
  Channel channel(make_unix_socket());
  for (;;) {
    const int result =
        ::connect(channel.fd(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes);
    if (result == 0) break;
    const int error_number = errno;
    if (error_number == EINTR) continue;
    if (error_number == EAGAIN) {
      // The listener's queue is full, and the system offers nothing to wait on.
      CONVOY_REQUIRE(!deadline.expired(), kTimeout, "connecting to ", address.to_string(),
                     " took longer than its time limit: its queue is full");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const bool is_gone = error_number == ECONNREFUSED || error_number == ENOENT;
    CONVOY_REQUIRE(!is_gone, kPeerLost, "nobody listens on ", address.to_string(),
                   ": the launcher behind it has ended");
    throw_system_error(concat("connecting to ", address.to_string()), error_number);
  }
  const auto peer = channel.peer();
  CONVOY_REQUIRE(peer.uid == ::geteuid(), kProtocol, "the listener on ", address.to_string(),
                 " runs as user ", peer.uid, ", this process as user ", ::geteuid());
  return channel;
}

PeerCredentials Channel::peer() const {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    throw_system_error("asking who is at the other end", errno);
  }
  return {credentials.pid, credentials.uid};
}

void Channel::send(std::string_view bytes, Deadline deadline, int passed_fd) {
  while (!bytes.empty()) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (passed_fd >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
    }
    const auto sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      passed_fd = -1;
      continue;
    }
    const int error_number = errno;
    if (error_number == EINTR) continue;
    CONVOY_REQUIRE(error_number != EPIPE && error_number != ECONNRESET, kPeerLost,
                   "the peer has closed the connection");
    if (error_number != EAGAIN) throw_system_error("sending", error_number);
    wait_ready(fd(), POLLOUT, deadline, "sending");
  }
}

std::size_t Channel::receive_some(void* data, std::size_t size, Deadline deadline) {
  for (;;) {
    iovec part{data, size};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto got = ::recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (got >= 0) {
      for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr;
           header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        int passed = -1;
        std::memcpy(&passed, CMSG_DATA(header), sizeof(int));
        received_fd_.reset(passed);
      }
      return static_cast<std::size_t>(got);
    }
    const int error_number = errno;
    if (error_number == EINTR) continue;
    if (error_number == ECONNRESET) return 0;
    if (error_number != EAGAIN) throw_system_error("receiving", error_number);
    wait_ready(fd(), POLLIN, deadline, "receiving");
  }
}

void Channel::receive(void* data, std::size_t size, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const auto got = receive_some(to, size, deadline);
    CONVOY_REQUIRE(got > 0, kPeerLost, "the peer has closed the connection");
    to += got;
    size -= got;
  }
}

void Channel::send_frame(FrameType type, std::uint32_t request, std::string_view payload,
                         Deadline deadline, int passed_fd) {
  send(encode_frame(type, request, payload), deadline, passed_fd);
}

Frame Channel::receive_frame(Deadline deadline, std::size_t max_payload) {
  FrameDecoder decoder(max_payload);
  std::array<char, 4096> bytes;
  for (std::size_t wanted = kFrameHeaderBytes;;) {
    receive(bytes.data(), wanted, deadline);
    decoder.feed({bytes.data(), wanted});
    if (auto frame = decoder.next()) return std::move(*frame);
    wanted = std::min(decoder.missing_bytes(), bytes.size());
  }
}

void Channel::shut_down() noexcept { ::shutdown(fd(), SHUT_RDWR); }

}  // namespace convoy
