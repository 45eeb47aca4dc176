// One output stream of one rank: from its pipe to the console, to a file, and to a short memory.
#pragma once

#include "convoy/base/fd.h"
#include "programs/convoyrun/console.h"
#include "programs/convoyrun/line_splitter.h"

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

namespace convoy::launcher {

/// The last lines of a stream, each cut to a sane length.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineBytes = 2000;

  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

/// The last lines of a file, as Tail keeps them; empty when it cannot be read.
std::vector<std::string> tail_of_file(const std::string& path);

/// Forwards what comes through a pipe. The file gets the bytes as they are; the console gets whole
/// lines. Thread rule: one thread.
class RankOutput {
 public:
  /// `file` may be empty (nothing is kept).
  RankOutput(int rank, Stream stream, Fd pipe, Fd file, std::string file_path);

  int fd() const noexcept { return pipe_.get(); }
  int rank() const noexcept { return rank_; }
  Stream stream() const noexcept { return stream_; }
  bool is_open() const noexcept { return static_cast<bool>(pipe_); }
  const Tail& tail() const noexcept { return tail_; }

  /// Reads once and passes on. Returns false when the stream has ended, and then the pipe is still
  /// open: the owner stops watching it and calls close().
  bool read_once(Console& console);
  /// Passes a last line without newline on, and closes.
  void close(Console& console);

 private:
  void keep(std::string_view bytes, Console& console);
  void show(std::string_view line, Console& console);

  int rank_;
  Stream stream_;
  Fd pipe_;
  Fd file_;
  std::string file_path_;
  LineSplitter splitter_;
  Tail tail_;
};

}  // namespace convoy::launcher
