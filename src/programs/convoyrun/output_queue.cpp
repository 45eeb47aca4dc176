// Non-blocking output for pipes, terminals, sockets and files.
#include "programs/convoyrun/output_queue.h"

#include "convoy/base/check.h"

#include <cerrno>

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::launcher {

OutputQueue::OutputQueue(EventLoop& loop, int fd) : loop_(loop), fd_(fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    is_closed_ = true;  // Started with this descriptor closed: there is nobody to write to.
    return;
  }
  is_terminal_ = ::isatty(fd) == 1;
  if (S_ISSOCK(info.st_mode)) {
    kind_ = Kind::kSocket;
  } else if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
    open_non_blocking();
  }
}

OutputQueue::~OutputQueue() { watch(false); }

void OutputQueue::open_non_blocking() {
  const std::string path = concat("/proc/self/fd/", fd_);
  own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  kind_ = own_ ? Kind::kNonBlocking : Kind::kShared;
}

void OutputQueue::append(std::string_view bytes) {
  if (is_closed_) return;
  if (begin_ > 0 && begin_ * 2 >= buffer_.size()) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

ssize_t OutputQueue::write_some(std::string_view bytes) const {
  switch (kind_) {
    case Kind::kFile: return ::write(fd_, bytes.data(), bytes.size());
    case Kind::kNonBlocking: return ::write(own_.get(), bytes.data(), bytes.size());
    case Kind::kSocket: return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Kind::kShared: break;
  }
  // A pipe that polls writable takes PIPE_BUF bytes without waiting.
  pollfd room{fd_, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
}

void OutputQueue::flush() {
  while (pending() > 0) {
    const ssize_t count = write_some(std::string_view(buffer_).substr(begin_));
    if (count >= 0) {
      begin_ += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      watch(true);
      return;
    }
    is_closed_ = true;  // EPIPE, ENOSPC, EIO: nobody takes it, and the job goes on without.
    begin_ = buffer_.size();
  }
  watch(false);
  buffer_.clear();
  begin_ = 0;
}

void OutputQueue::watch(bool on) {
  const int fd = own_ ? own_.get() : fd_;
  if (on == loop_.watches(fd)) return;
  if (on) {
    loop_.add(fd, EPOLLOUT, [this](std::uint32_t) { flush(); });
  } else {
    loop_.remove(fd);
  }
}

}  // namespace convoy::launcher
