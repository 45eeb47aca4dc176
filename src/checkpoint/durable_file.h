// A file that is written from front to end and is on disk when it is finished.
#pragma once

#include "convoy/base/fd.h"

#include <cstddef>
#include <filesystem>
#include <string>

namespace convoy::saving {

/// Collects small writes. Errors of all calls: kSystem naming the path.
class DurableFile {
 public:
  /// Makes the file anew. What is no file (a pipe, a device) is refused.
  explicit DurableFile(const std::filesystem::path& path);

  void write(const void* data, std::size_t bytes);
  /// Waits until everything is on disk, and closes the file, whose errors count too.
  void finish();

 private:
  void flush();
  void put(const char* data, std::size_t bytes);
  [[noreturn]] void fail(int error_number) const;

  std::filesystem::path path_;
  Fd file_;
  std::string buffer_;
};

/// Waits until the entries of a folder (files made, renamed, removed) are on disk. Error: kSystem.
void sync_folder(const std::filesystem::path& folder);

/// The folder that holds `path`: "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace convoy::saving
