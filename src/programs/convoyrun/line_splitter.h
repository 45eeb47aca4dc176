// Cuts a stream of bytes into lines. Pure: no descriptors.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace convoy::launcher {

/// Keeps the part of a stream that has no newline yet. A line longer than the limit comes out in
/// pieces, so that a stream without newlines does not take all memory.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{8} << 20;

  explicit LineSplitter(std::size_t max_line_bytes = kMaxLineBytes) : limit_(max_line_bytes) {}

  /// Calls `on_line(std::string_view)` for each line that is whole now, without its newline.
  template <typename OnLine>
  void feed(std::string_view bytes, OnLine&& on_line) {
    for (;;) {
      const std::size_t end = bytes.find('\n');
      if (end == std::string_view::npos) break;
      const std::string_view piece = bytes.substr(0, end);
      if (pending_.empty()) {
        on_line(piece);
      } else {
        pending_.append(piece);
        on_line(std::string_view(pending_));
        pending_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    pending_.append(bytes);
    if (pending_.size() >= limit_) finish(on_line);
  }

  /// The end of the stream: a last line without newline is a line too.
  template <typename OnLine>
  void finish(OnLine&& on_line) {
    if (pending_.empty()) return;
    on_line(std::string_view(pending_));
    pending_ = std::string();
  }

  /// What came after the last newline.
  std::string_view pending() const noexcept { return pending_; }

 private:
  std::size_t limit_;
  std::string pending_;
};

}  // namespace convoy::launcher
