// Opens a file only if it is one: a path may lead to a pipe, and opening that waits for ever.
#pragma once

#include "convoy/base/fd.h"

#include <cstddef>
#include <filesystem>
#include <string>

namespace convoy {

/// An open file, or why there is none, as the end of a sentence: "No such file or directory", "it
/// is a pipe".
struct RegularFile {
  Fd fd;
  std::string problem;
};

/// `flags` as for open(2); closed on exec. Waits for nothing.
RegularFile open_regular_file(const std::filesystem::path& path, int flags);

/// The beginning of a file, or why it could not be read.
struct FileText {
  std::string text;
  std::string problem;
};

/// Reads on until `most` bytes or the end: one read() may give fewer.
FileText read_regular_file(const std::filesystem::path& path, std::size_t most);

}  // namespace convoy
