// Socket names of this machine, and waiting for a socket.
#include "control/unix_socket.h"

#include "convoy/base/check.h"
#include "convoy/base/random_id.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>

#include <poll.h>

namespace convoy {
namespace {

constexpr std::string_view kScheme = "unix:";

}  // namespace

ControlAddress ControlAddress::parse(std::string_view text) {
  const bool is_unix = text.starts_with(kScheme);
  const auto rest = is_unix ? text.substr(kScheme.size()) : std::string_view();
  const bool is_abstract = rest.starts_with('@');
  ControlAddress address{std::string(rest.substr(is_abstract ? 1 : 0)), is_abstract};
  CONVOY_REQUIRE(!address.name.empty() && address.name.find('\0') == std::string::npos &&
                     (is_abstract || address.name.front() == '/'),
                 kInvalidArgument, "'", text,
                 "' is no address of a control channel; it looks like unix:@name or unix:/path");
  return address;
}

ControlAddress ControlAddress::random(std::string_view prefix) { return {random_id(prefix), true}; }

std::string ControlAddress::to_string() const {
  return concat(kScheme, is_abstract ? "@" : "", name);
}

SocketName socket_name(const ControlAddress& address) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  const std::size_t prefix = address.is_abstract ? 1 : 0;
  CONVOY_REQUIRE(address.name.size() + 1 <= sizeof(name.address.sun_path), kInvalidArgument,
                 "the socket name '", address.to_string(), "' is longer than the ",
                 sizeof(name.address.sun_path) - 1, " bytes that the system allows");
  std::memcpy(name.address.sun_path + prefix, address.name.data(), address.name.size());
  const auto tail = address.is_abstract ? 0 : 1;  // A path ends with its zero byte.
  name.bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + prefix + address.name.size() + tail);
  return name;
}

Fd make_unix_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_system_error("creating a socket", errno);
  return socket;
}

void wait_ready(int fd, short events, Deadline deadline, std::string_view what) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const auto left = deadline.remaining();
    // Rounded up: a poll of zero milliseconds would spin through the last one.
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(ms, 60'000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw_system_error("waiting for a socket", errno);
    CONVOY_REQUIRE(!deadline.expired(), kTimeout, what, " took longer than its time limit");
  }
}

}  // namespace convoy
