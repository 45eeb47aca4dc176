// Opens files and reads across their borders.
#include "convoy/data/text.h"

#include "base/regular_file.h"
#include "convoy/base/check.h"
#include "convoy/base/hash.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::data {
namespace {

namespace fs = std::filesystem;

/// Descriptors are few, files may be many: those beyond are opened for each read.
constexpr std::size_t kMostOpenFiles = 256;
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
/// A larger text is known by this many blocks of it.
constexpr std::int64_t kMostBlocks = 64;

/// A process needs descriptors for other things too.
std::size_t most_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::size_t>(std::min<rlim_t>(kMostOpenFiles, limit.rlim_cur / 4));
}

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

Fd Text::File::open() const {
  // Without O_NONBLOCK a pipe that has taken the file's place would be waited for.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    throw_system_error(concat("cannot read the data '", path, "'"), errno);
  }
  struct stat info {};
  const bool same = ::fstat(fd.get(), &info) == 0 && info.st_dev == device && info.st_ino == inode;
  CONVOY_REQUIRE(same, kSystem, "cannot read the data '", path,
                 "': it is another file now than when it was opened");
  return fd;
}

void Text::append(const std::string& path) {
  RegularFile file = open_regular_file(path, O_RDONLY);
  if (!file.fd) fail(path, file.problem);
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) fail(path, std::generic_category().message(errno));
  if (info.st_size == 0) return;
  if (files_.size() >= most_open_files()) file.fd.reset();
  files_.push_back({size_, info.st_size, path, info.st_dev, info.st_ino, std::move(file.fd)});
  names_.push_back(path);
  size_ += info.st_size;
}

void Text::File::read(std::int64_t from, std::span<std::uint8_t> out) const {
  const Fd own = kept ? Fd() : open();
  const int fd = kept ? kept.get() : own.get();
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), static_cast<off_t>(from));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error(concat("cannot read the data '", path, "'"), errno);
    if (count == 0) {
      struct stat info {};
      ::fstat(fd, &info);
      throw Error(ErrorKind::kSystem,
                  concat("cannot read the data: '", path, "' has been cut from ", bytes, " to ",
                         info.st_size, " bytes while it was in use"));
    }
    out = out.subspan(static_cast<std::size_t>(count));
    from += count;
  }
}

void Text::read(std::int64_t begin, std::span<std::uint8_t> out) const {
  const auto wanted = static_cast<std::int64_t>(out.size());
  CONVOY_REQUIRE(begin >= 0 && wanted <= size_ - begin, kInvalidArgument, "bytes [", begin, ", ",
                 begin + wanted, ") of a text of ", size_, " bytes");
  auto file = std::upper_bound(
      files_.begin(), files_.end(), begin,
      [](std::int64_t offset, const File& candidate) { return offset < candidate.begin; });
  if (file != files_.begin()) --file;
  while (!out.empty()) {
    const std::int64_t from = begin - file->begin;
    const auto count = std::min(out.size(), static_cast<std::size_t>(file->bytes - from));
    file->read(from, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
    ++file;
  }
}

std::uint64_t Text::xxh3() const {
  Hasher64 hash;
  hash_range(0, size_, hash);
  return hash.digest();
}

std::uint64_t Text::fingerprint() const {
  Hasher64 hash;
  hash.update(&size_, sizeof size_);
  const std::int64_t most = kMostBlocks * static_cast<std::int64_t>(kBlockBytes);
  if (size_ <= most) {
    hash_range(0, size_, hash);
  } else {
    const auto block = static_cast<std::int64_t>(kBlockBytes);
    for (std::int64_t i = 0; i < kMostBlocks; ++i) {  // The first and the last bytes among them.
      const std::int64_t begin = (size_ - block) / (kMostBlocks - 1) * i;
      hash_range(i + 1 < kMostBlocks ? begin : size_ - block, block, hash);
    }
  }
  return hash.digest();
}

void Text::hash_range(std::int64_t begin, std::int64_t bytes, Hasher64& hash) const {
  std::vector<std::uint8_t> block(kBlockBytes);
  while (bytes > 0) {
    const std::span part(block.data(), std::min(static_cast<std::size_t>(bytes), kBlockBytes));
    read(begin, part);
    hash.update(part.data(), part.size());
    begin += static_cast<std::int64_t>(part.size());
    bytes -= static_cast<std::int64_t>(part.size());
  }
}

}  // namespace convoy::data
