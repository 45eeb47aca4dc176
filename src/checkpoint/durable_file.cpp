// Writing, syncing, and what can go wrong in either.
#include "checkpoint/durable_file.h"

#include "base/held_signal.h"
#include "base/regular_file.h"
#include "convoy/base/check.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace convoy::saving {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path) {
  RegularFile file = open_regular_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  CONVOY_REQUIRE(file.problem.empty(), kSystem, "cannot write '", path_.native(),
                 "': ", file.problem);
  file_ = std::move(file.fd);
}

void DurableFile::fail(int error_number) const {
  throw_system_error(concat("cannot write '", path_.native(), "'"), error_number);
}

void DurableFile::put(const char* data, std::size_t bytes) {
  const FileSizeSignalHeld held;
  while (bytes > 0) {
    const ssize_t count = ::write(file_.get(), data, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    data += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void DurableFile::flush() {
  put(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void DurableFile::write(const void* data, std::size_t bytes) {
  const auto* text = static_cast<const char*>(data);
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes > kBufferBytes) {
    put(text, bytes);
  } else {
    buffer_.append(text, bytes);
  }
}

void DurableFile::finish() {
  flush();
  if (::fsync(file_.get()) != 0) fail(errno);
  if (::close(file_.release()) != 0) fail(errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder, and then need not.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw_system_error(concat("cannot sync the folder '", folder.native(), "'"), errno);
  }
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace convoy::saving
