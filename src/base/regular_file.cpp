// Opens without waiting, and looks what it is.
#include "base/regular_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>

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

}  // namespace convoy
