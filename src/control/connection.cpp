// Reads and writes of a control server's client, without ever waiting.
#include "control/connection.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

namespace convoy {
namespace {

bool allowed(ConnectionState from, ConnectionState to) {
  switch (to) {
    case ConnectionState::kGreeting: return false;
    case ConnectionState::kRank:
    case ConnectionState::kReporter: return from == ConnectionState::kGreeting;
    case ConnectionState::kLeaving:
      return from == ConnectionState::kRank || from == ConnectionState::kReporter;
  }
  return false;
}

}  // namespace

Connection::Connection(Fd socket, pid_t pid, Deadline hello_deadline)
    : socket_(std::move(socket)), pid_(pid), hello_deadline_(hello_deadline) {}

void Connection::enter(ConnectionState to) {
  CONVOY_CHECK(allowed(state_, to), static_cast<int>(state_), " -> ", static_cast<int>(to));
  state_ = to;
}

void Connection::become_rank(int rank) {
  enter(ConnectionState::kRank);
  rank_ = rank;
  decoder_.set_max_payload(kMaxFrameBytes);
}

void Connection::become_reporter(int rank) {
  enter(ConnectionState::kReporter);
  rank_ = rank;
  decoder_.set_max_payload(kMaxFrameBytes);
}

void Connection::become_leaving() { enter(ConnectionState::kLeaving); }

Connection::ReadResult Connection::read(std::size_t budget) {
  std::array<char, 64 * 1024> bytes;
  while (budget > 0) {
    const auto got = ::recv(fd(), bytes.data(), std::min(bytes.size(), budget), 0);
    if (got > 0) {
      decoder_.feed({bytes.data(), static_cast<std::size_t>(got)});
      budget -= static_cast<std::size_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return ReadResult::kDrained;
    return ReadResult::kEnded;
  }
  return ReadResult::kMore;
}

bool Connection::send(FrameType type, std::uint32_t request, std::string_view payload,
                      int passed_fd) {
  output_ += encode_frame(type, request, payload);
  if (passed_fd < 0) return flush();
  // A descriptor travels with the welcome only, the first frame of all: the queue holds nothing
  // else, and the socket of a new connection has room for it.
  CONVOY_CHECK(sent_ == 0);
  iovec part{output_.data(), output_.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
  const auto sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
  if (sent <= 0) return false;
  sent_ = static_cast<std::size_t>(sent);
  return flush();
}

bool Connection::flush() {
  while (has_output()) {
    const auto sent = ::send(fd(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<std::size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    // A queue that never runs empty still gives back what is sent; by halves, so each byte moves
    // once.
    if (sent_ > output_.size() / 2) {
      output_.erase(0, sent_);
      sent_ = 0;
    }
    return true;
  }
  // A large answer's memory is given back.
  if (output_.capacity() > (std::size_t{1} << 16)) output_ = std::string();
  output_.clear();
  sent_ = 0;
  return true;
}

}  // namespace convoy
