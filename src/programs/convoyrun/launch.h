// From the command line to the exit code of one run.
#pragma once

#include "programs/convoyrun/options.h"

#include <span>
#include <string>
#include <vector>

namespace convoy::launcher {

/// What main() got.
struct Invocation {
  std::vector<std::string> argv;        ///< The whole command line, for the report.
  const char* const* environment;       ///< Null-terminated.
  std::span<char> command_line_memory;  ///< Where argv lies, for Guard; may be empty.
};

/// Runs the job and returns the launcher's exit code. Errors: UsageError, NotRunnable, and Error
/// for what keeps the launcher itself from working.
int launch(const Options& options, const Invocation& invocation);

}  // namespace convoy::launcher
