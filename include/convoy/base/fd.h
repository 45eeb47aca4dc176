// Owns one file descriptor.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

namespace convoy {

/// A file descriptor that is closed with its owner. Moved, never copied; -1 means none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor away; the caller closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes what is held and takes `fd`. errno is kept.
  void reset(int fd = -1) noexcept;
  /// A second descriptor of the same open file, closed on exec. Error: kSystem.
  Fd duplicate() const;

 private:
  int fd_ = -1;
};

/// An anonymous memory file of `bytes` zero bytes: no name, gone with its last user, closed on
/// exec, sealed so that it can neither shrink nor grow. Its pages are reserved here, so that
/// touching them later cannot raise SIGBUS; a limit in the way (RLIMIT_FSIZE, memory cgroup) is an
/// error here. `name` shows in /proc/<pid>/maps only. Errors: kMemory with the bytes wanted,
/// kSystem.
Fd make_memory_file(std::string_view name, std::size_t bytes);

/// An eventfd with count 0, non-blocking, closed on exec. Error: kSystem.
Fd make_event_fd();

}  // namespace convoy
