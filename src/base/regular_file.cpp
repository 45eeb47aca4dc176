// Opens without waiting, and looks what it is.
#include "base/regular_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy {
namespace {

std::string kind_problem(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return {};
    case S_IFDIR: return "it is a folder";
    case S_IFIFO: return "it is a pipe";
    case S_IFSOCK: return "it is a socket";
    case S_IFCHR:
    case S_IFBLK: return "it is a device";
    default: return "it is no file";
  }
}

}  // namespace

RegularFile open_regular_file(const std::filesystem::path& path, int flags) {
  constexpr mode_t kNewFile = 0666;
  // O_NONBLOCK: a pipe with nobody at its other end is not waited for. Of no effect on files.
  RegularFile file{Fd(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kNewFile)), {}};
  const int open_error = errno;
  struct stat info {};
  const bool known =
      file.fd ? ::fstat(file.fd.get(), &info) == 0 : ::stat(path.c_str(), &info) == 0;
  if (known) file.problem = kind_problem(info.st_mode);
  if (!file.fd && file.problem.empty()) file.problem = std::generic_category().message(open_error);
  if (file.fd && !known) file.problem = std::generic_category().message(errno);
  if (!file.problem.empty()) file.fd.reset();
  return file;
}

FileText read_regular_file(const std::filesystem::path& path, std::size_t most) {
  const RegularFile file = open_regular_file(path, O_RDONLY);
  if (!file.fd) return {{}, file.problem};
  std::string text(most, '\0');
  std::size_t filled = 0;
  while (filled < most) {
    const ssize_t count = ::read(file.fd.get(), text.data() + filled, most - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {{}, std::generic_category().message(errno)};
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  text.resize(filled);
  return {std::move(text), {}};
}

}  // namespace convoy
