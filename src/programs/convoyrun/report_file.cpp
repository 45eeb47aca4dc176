// A temporary file, fsync, rename.
#include "programs/convoyrun/report_file.h"

#include "convoy/base/check.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::launcher {

ReportFile::ReportFile(std::string path) : path_(std::move(path)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    throw_system_error(concat("cannot write the report ", path_), EISDIR);
  }
  temporary_ = concat(path_, ".", ::getpid(), ".tmp");
  file_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_) throw_system_error(concat("cannot write the report ", path_), errno);
}

ReportFile::~ReportFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ReportFile::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file_.get(), text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw_system_error(concat("cannot write the report ", path_), errno);
    }
  }
  if (::fsync(file_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw_system_error(concat("cannot write the report ", path_), errno);
  }
  temporary_.clear();
}

}  // namespace convoy::launcher
