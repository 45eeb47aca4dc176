// A listening socket of one user.
#include "control/unix_socket.h"
#include "convoy/base/check.h"
#include "convoy/control/channel.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy {
namespace {

void require_private_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  const auto folder = slash == std::string::npos ? std::string(".") : path.substr(0, slash + 1);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    throw_system_error(concat("looking at the socket's folder ", folder), errno);
  }
  CONVOY_REQUIRE(status.st_uid == ::geteuid() && (status.st_mode & 077) == 0, kInvalidArgument,
                 "the socket's folder ", folder,
                 " must belong to this user and be closed to others (chmod 700)");
}

}  // namespace

Listener::Listener(const ControlAddress& address) : socket_(make_unix_socket()), address_(address) {
  if (!address_.is_abstract) require_private_folder(address_.name);
  const auto name = socket_name(address_);
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) != 0) {
    const int error_number = errno;
    socket_.reset();  // The destructor must not remove a file that is not ours.
    throw_system_error(concat("binding ", address_.to_string()), error_number);
  }
  if (::listen(socket_.get(), SOMAXCONN) != 0) throw_system_error("listening", errno);
}

Listener::~Listener() {
  if (socket_ && !address_.is_abstract) ::unlink(address_.name.c_str());
}

std::optional<Channel> Listener::try_accept() {
  for (;;) {
    Fd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) return Channel(std::move(socket));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return std::nullopt;
    throw_system_error("accepting a connection", errno);
  }
}

Channel Listener::accept(Deadline deadline) {
  for (;;) {
    wait_ready(socket_.get(), POLLIN, deadline, "waiting for a connection");
    auto channel = try_accept();
    if (channel && channel->peer().uid == ::geteuid()) return std::move(*channel);
  }
}

}  // namespace convoy
