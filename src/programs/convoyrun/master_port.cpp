// Binds the port that ranks see as MASTER_PORT.
#include "programs/convoyrun/master_port.h"

#include "convoy/base/check.h"

#include <cerrno>
#include <cstdint>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace convoy::launcher {

MasterPort::MasterPort(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw_system_error("cannot make a TCP socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Bound without SO_REUSEADDR: it must fail when somebody else holds the port.
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw_system_error(concat("cannot take MASTER_PORT ", kMasterAddress, ":", port), errno);
  }
  const int on = 1;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    throw_system_error("cannot share the address of MASTER_PORT", errno);
  }
  socklen_t length = sizeof(address);
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_system_error("cannot read the number of MASTER_PORT", errno);
  }
  port_ = ntohs(address.sin_port);
}

}  // namespace convoy::launcher
