// Maps files and reads across their borders.
#include "convoy/data/text.h"

#include "convoy/base/check.h"
#include "convoy/base/hash.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, concat("cannot read the data '", path, "': ", reason));
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (walk->path().filename().native().starts_with('.')) {
      walk.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;  // A dangling link is no regular file.
    if (walk->is_regular_file(ignored)) files.push_back(walk->path().native());
  }
  if (error) fail(folder, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_at(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(path, "no such file or folder");
  if (!fs::exists(status)) fail(path, error.message());
  if (fs::is_directory(status)) return files_below(path);
  if (!fs::is_regular_file(status)) fail(path, "it is neither a file nor a folder");
  return {path};
}

std::string quoted_list(std::span<const std::string> paths) {
  std::string list;
  for (const std::string& path : paths) list += concat(list.empty() ? "'" : ", '", path, "'");
  return list;
}

}  // namespace

Text Text::open(std::span<const std::string> paths) {
  Text text;
  for (const std::string& path : paths) {
    for (const std::string& file : files_at(path)) text.append(file);
  }
  CONVOY_REQUIRE(text.size_ > 0, kInvalidArgument, "there is no text in the data: ",
                 paths.empty() ? "no path was given"
                               : quoted_list(paths) + (paths.size() == 1 ? " holds" : " hold") +
                                     " not one byte");
  return text;
}

void Text::append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, std::generic_category().message(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size == 0) {
    ::close(fd);
    return;
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  const int map_error = errno;
  ::close(fd);  // The mapping keeps the file.
  if (address == MAP_FAILED) fail(path, std::generic_category().message(map_error));
  std::shared_ptr<const void> mapping(
      address, [bytes](const void* mapped) { ::munmap(const_cast<void*>(mapped), bytes); });
  pieces_.push_back({size_, {static_cast<const std::uint8_t*>(address), bytes}, mapping});
  names_.push_back(path);
  size_ += static_cast<std::int64_t>(bytes);
}

void Text::read(std::int64_t begin, std::span<std::uint8_t> out) const {
  const auto wanted = static_cast<std::int64_t>(out.size());
  CONVOY_REQUIRE(begin >= 0 && wanted <= size_ - begin, kInvalidArgument, "bytes [", begin, ", ",
                 begin + wanted, ") of a text of ", size_, " bytes");
  auto piece = std::upper_bound(
      pieces_.begin(), pieces_.end(), begin,
      [](std::int64_t offset, const Piece& candidate) { return offset < candidate.begin; });
  if (piece != pieces_.begin()) --piece;
  while (!out.empty()) {
    const auto from = piece->bytes.subspan(static_cast<std::size_t>(begin - piece->begin));
    const std::size_t count = std::min(out.size(), from.size());
    std::memcpy(out.data(), from.data(), count);
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
    ++piece;
  }
}

std::uint64_t Text::xxh3() const {
  Hasher64 hash;
  for (const Piece& piece : pieces_) hash.update(piece.bytes.data(), piece.bytes.size());
  return hash.digest();
}

}  // namespace convoy::data
