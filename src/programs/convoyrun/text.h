// Small phrases that several messages share.
#pragma once

#include "programs/convoyrun/rank_record.h"

#include <string>
#include <vector>

namespace convoy::launcher {

/// "0.052 s", "12.3 s": three digits that matter.
std::string format_seconds(double seconds);

/// "exit 3" or "signal SIGSEGV"; "still running" without an ending.
std::string describe_ending(const std::optional<Ending>& ending);

/// "rank 3", or "ranks 0, 1 and 4".
std::string list_ranks(const std::vector<int>& ranks);

/// The name of this host.
std::string host_name();

}  // namespace convoy::launcher
