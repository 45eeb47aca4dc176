// Writes to one output of the launcher without ever blocking its event loop.
#pragma once

#include "convoy/base/fd.h"
#include "programs/convoyrun/event_loop.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace convoy::launcher {

/// Bytes on their way to stdout or stderr. What the other side does not take yet is kept; who
/// produces asks is_congested() and pauses. Thread rule: one thread.
class OutputQueue {
 public:
  /// Writes to `fd`, which stays the caller's. A pipe or terminal is opened a second time in
  /// non-blocking mode, because that mode set on `fd` itself would be seen by every process that
  /// shares it, the user's shell for one.
  OutputQueue(EventLoop& loop, int fd);
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  /// Adds to the queue. Written with the next flush().
  void append(std::string_view bytes);
  /// Writes what the other side takes now, and watches it when something is left.
  void flush();

  bool is_congested() const noexcept { return pending() > kCongestedBytes; }
  bool is_drained() const noexcept { return pending() == 0; }
  /// True once the reader has gone; everything is dropped from then on.
  bool is_closed() const noexcept { return is_closed_; }
  bool is_terminal() const noexcept { return is_terminal_; }
  int fd() const noexcept { return fd_; }

 private:
  static constexpr std::size_t kCongestedBytes = std::size_t{1} << 20;
  enum class Kind {
    kFile,         // regular files never make a writer wait
    kNonBlocking,  // our own non-blocking description of a pipe or terminal
    kSocket,       // send() has a flag for it
    kShared,       // neither was possible: asks before each small write
  };

  std::size_t pending() const noexcept { return buffer_.size() - begin_; }
  void open_non_blocking();
  ssize_t write_some(std::string_view bytes) const;
  void watch(bool on);

  EventLoop& loop_;
  int fd_;
  Kind kind_ = Kind::kFile;
  Fd own_;  // kNonBlocking only
  bool is_terminal_ = false;
  bool is_closed_ = false;
  std::string buffer_;
  std::size_t begin_ = 0;
};

}  // namespace convoy::launcher
