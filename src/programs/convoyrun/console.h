// What people see: the ranks' lines and the launcher's own on stdout and stderr.
#pragma once

#include "programs/convoyrun/output_queue.h"
#include "programs/convoyrun/stream_choice.h"

#include <optional>
#include <string>
#include <string_view>

namespace convoy::launcher {

/// Puts whole lines on stdout and stderr. Where both are the same pipe, file or terminal, they
/// share one queue, so that lines cannot cut into each other.
///
/// On a terminal, text that a rank draws over and over (with '\r') is shown as one status line at
/// the bottom, cut to the terminal's width: other lines scroll by above it. Elsewhere such text
/// is part of its line, as the rank wrote it.
/// Thread rule: one thread. Nothing is written before flush().
class Console {
 public:
  Console(EventLoop& loop, bool quiet);

  /// A whole line of a rank, without its newline: "[rank] line".
  void rank_line(int rank, Stream stream, std::string_view line);
  /// A line of a rank that has no end yet.
  void rank_pending(int rank, Stream stream, std::string_view pending);

  /// A line of the launcher that can be left out: not shown with --quiet.
  void note(std::string_view text);
  /// A line of the launcher that is always shown: "convoyrun: text".
  void say(std::string_view text);

  void flush();
  bool is_congested(Stream stream) const { return queue(stream).is_congested(); }
  bool is_drained() const;
  bool is_closed(Stream stream) const { return queue(stream).is_closed(); }

 private:
  struct Status {
    int rank;
    std::string text;
  };

  OutputQueue& queue(Stream stream) { return stream == Stream::kErr && err_ ? *err_ : out_; }
  const OutputQueue& queue(Stream stream) const {
    return stream == Stream::kErr && err_ ? *err_ : out_;
  }
  void put_line(Stream stream, std::string_view prefix, std::string_view line);
  void hide_status();
  void draw_status();

  bool quiet_;
  OutputQueue out_;
  std::optional<OutputQueue> err_;  // none where stderr goes to the same place as stdout
  // The status line, and where it stands. Drawn with the flush after a change.
  std::optional<Stream> terminal_;
  std::optional<Status> status_;
  bool status_is_shown_ = false;
};

/// `text` cut to at most `columns` characters, never inside a UTF-8 character.
std::string_view cut_to_columns(std::string_view text, std::size_t columns);

}  // namespace convoy::launcher
