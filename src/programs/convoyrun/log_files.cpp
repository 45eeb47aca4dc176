// Makes log folders and opens log files.
#include "programs/convoyrun/log_files.h"

#include "convoy/base/check.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

std::string make_temporary_folder() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error) throw_system_error("no folder for temporary files; give --log-dir", error.value());
  std::string pattern = (parent / "convoyrun_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw_system_error(concat("cannot make a folder for logs in ", parent.string()), errno);
  }
  return pattern;
}

}  // namespace

LogFiles::LogFiles(const Options& options, const std::string& run_id, int ranks)
    : tee_(options.tee), redirects_(options.redirects) {
  if (tee_.is_empty() && redirects_.is_empty()) return;
  const std::string root = options.log_dir.empty() ? make_temporary_folder() : options.log_dir;
  folder_ = std::filesystem::absolute(std::filesystem::path(root) / run_id).string();
  for (int rank = 0; rank < ranks; ++rank) {
    if (!keeps(rank, Stream::kOut) && !keeps(rank, Stream::kErr)) continue;
    const auto parent = std::filesystem::path(path(rank, Stream::kOut)).parent_path();
    std::error_code error;
    std::filesystem::create_directories(parent, error);
    if (error)
      throw_system_error(concat("cannot make the folder ", parent.string()), error.value());
  }
}

bool LogFiles::keeps(int local_rank, Stream stream) const {
  return tee_.covers(local_rank, stream) || redirects_.covers(local_rank, stream);
}

bool LogFiles::only_keeps(int local_rank, Stream stream) const {
  return redirects_.covers(local_rank, stream) && !tee_.covers(local_rank, stream);
}

std::string LogFiles::path(int local_rank, Stream stream) const {
  return concat(folder_, "/attempt_0/", local_rank, "/", to_string(stream), ".log");
}

Fd LogFiles::open(int local_rank, Stream stream) const {
  const std::string name = path(local_rank, stream);
  Fd file(::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (!file) throw_system_error(concat("cannot write ", name), errno);
  return file;
}

}  // namespace convoy::launcher
