// From the command line to the exit code of one run.
#pragma once

#include "programs/convoyrun/options.h"

#include <string>
#include <vector>

namespace convoy::launcher {

/// Runs the job and returns the launcher's exit code. `argv` is the whole command line, for the
/// report; `environment` is main()'s third argument. Errors: UsageError, and Error for what keeps
/// the launcher itself from working.
int launch(const Options& options, const std::vector<std::string>& argv,
           const char* const* environment);

}  // namespace convoy::launcher
