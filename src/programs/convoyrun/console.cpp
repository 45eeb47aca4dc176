// Composes lines for stdout and stderr, and keeps a status line on a terminal.
#include "programs/convoyrun/console.h"

#include "convoy/base/check.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

constexpr std::string_view kOwnPrefix = "convoyrun: ";
constexpr std::string_view kEraseLine = "\r\x1b[K";

bool are_same_place(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}

std::size_t terminal_columns(int fd) {
  winsize size{};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

}  // namespace

std::string_view cut_to_columns(std::string_view text, std::size_t columns) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins_character && used++ == columns) return text.substr(0, i);
  }
  return text;
}

Console::Console(EventLoop& loop, bool quiet) : quiet_(quiet), out_(loop, STDOUT_FILENO) {
  if (!are_same_place(STDOUT_FILENO, STDERR_FILENO)) err_.emplace(loop, STDERR_FILENO);
  if (out_.is_terminal()) {
    terminal_ = Stream::kOut;
  } else if (queue(Stream::kErr).is_terminal()) {
    terminal_ = Stream::kErr;
  }
}

void Console::put_line(Stream stream, std::string_view prefix, std::string_view line) {
  auto& target = queue(stream);
  if (target.is_terminal()) hide_status();
  target.append(prefix);
  target.append(line);
  target.append("\n");
}

void Console::rank_line(int rank, Stream stream, std::string_view line) {
  if (status_ && status_->rank == rank) {
    hide_status();
    status_.reset();
  }
  if (queue(stream).is_terminal()) {
    // Only what the last '\r' left is to be seen; a '\r' at the end belongs to the newline.
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto at = line.rfind('\r'); at != std::string_view::npos) line.remove_prefix(at + 1);
  }
  put_line(stream, concat("[", rank, "] "), line);
}

void Console::rank_pending(int rank, Stream stream, std::string_view pending) {
  if (!terminal_ || !queue(stream).is_terminal()) return;
  // Behind the last '\r' stands what is being drawn now; a '\r' at the end shows what is before it.
  if (pending.ends_with('\r')) pending.remove_suffix(1);
  const auto at = pending.rfind('\r');
  if (at == std::string_view::npos && status_ && status_->rank != rank) return;
  if (at != std::string_view::npos) pending.remove_prefix(at + 1);
  if (pending.empty()) return;
  hide_status();
  status_ = Status{rank, std::string(pending)};
}

void Console::note(std::string_view text) {
  if (!quiet_) say(text);
}

void Console::say(std::string_view text) { put_line(Stream::kErr, kOwnPrefix, text); }

void Console::hide_status() {
  if (!status_is_shown_) return;
  queue(*terminal_).append(kEraseLine);
  status_is_shown_ = false;
}

void Console::draw_status() {
  if (!status_ || status_is_shown_) return;
  auto& target = queue(*terminal_);
  const std::string line = concat("[", status_->rank, "] ", status_->text);
  target.append(cut_to_columns(line, terminal_columns(target.fd()) - 1));
  status_is_shown_ = true;
}

void Console::flush() {
  draw_status();
  out_.flush();
  if (err_) err_->flush();
}

bool Console::is_drained() const { return out_.is_drained() && (!err_ || err_->is_drained()); }

}  // namespace convoy::launcher
