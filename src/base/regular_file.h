// Opens a file only if it is one: a path may lead to a pipe, and opening that waits for ever.
#pragma once

#include "convoy/base/fd.h"

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

}  // namespace convoy
