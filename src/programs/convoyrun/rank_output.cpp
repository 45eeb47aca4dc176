// Reads a rank's pipe.
#include "programs/convoyrun/rank_output.h"

#include "convoy/base/check.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace convoy::launcher {

void Tail::add(std::string_view line) {
  if (lines_.size() == kLines) lines_.pop_front();
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (const auto at = line.rfind('\r'); at != std::string_view::npos) line.remove_prefix(at + 1);
  const auto kept = cut_to_columns(line, kLineBytes);
  lines_.push_back(kept.size() == line.size() ? std::string(line) : concat(kept, " ..."));
}

std::vector<std::string> tail_of_file(const std::string& path) {
  constexpr std::streamoff kEnough = Tail::kLines * Tail::kLineBytes;
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  if (!file || size <= 0) return {};
  const bool is_cut = size > kEnough;
  file.seekg(is_cut ? size - kEnough : 0);
  Tail tail;
  std::string line;
  if (is_cut) std::getline(file, line);  // The rest of a line that began earlier.
  while (std::getline(file, line)) tail.add(line);
  return tail.lines();
}

RankOutput::RankOutput(int rank, Stream stream, Fd pipe, Fd file, std::string file_path)
    : rank_(rank),
      stream_(stream),
      pipe_(std::move(pipe)),
      file_(std::move(file)),
      file_path_(std::move(file_path)) {
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
}

bool RankOutput::read_once(Console& console) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(pipe_.get(), bytes.data(), bytes.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
  keep(text, console);
  splitter_.feed(text, [&](std::string_view line) { show(line, console); });
  if (!splitter_.pending().empty()) {
    console.rank_pending(rank_, stream_, splitter_.pending());
  }
  return true;
}

void RankOutput::close(Console& console) {
  splitter_.finish([&](std::string_view line) { show(line, console); });
  pipe_.reset();
  file_.reset();
}

void RankOutput::show(std::string_view line, Console& console) {
  if (stream_ == Stream::kErr) tail_.add(line);
  console.rank_line(rank_, stream_, line);
}

void RankOutput::keep(std::string_view bytes, Console& console) {
  while (file_ && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      console.say(concat("cannot write ", file_path_, ": ", std::generic_category().message(errno),
                         "; the rank's output goes on to the console only"));
      file_.reset();
    }
  }
}

}  // namespace convoy::launcher
