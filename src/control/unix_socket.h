// What channels and listeners share: socket names, new sockets, and waiting for one.
#pragma once

#include "convoy/base/deadline.h"
#include "convoy/base/fd.h"
#include "convoy/control/channel.h"

#include <string_view>

#include <sys/socket.h>
#include <sys/un.h>

namespace convoy {

/// An address in the form that bind and connect take.
struct SocketName {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

/// Error: kInvalidArgument for a name that is too long for the system.
SocketName socket_name(const ControlAddress& address);

/// A stream socket, non-blocking and closed on exec.
Fd make_unix_socket();

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). The end of the peer counts as ready;
/// the call that follows reports it. Error: kTimeout, the text beginning with `what`.
void wait_ready(int fd, short events, Deadline deadline, std::string_view what);

}  // namespace convoy
