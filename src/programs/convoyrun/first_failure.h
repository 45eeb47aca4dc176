// Decides which rank failed first and why, once all have ended. Pure.
#pragma once

#include "programs/convoyrun/rank_record.h"

#include <optional>
#include <span>
#include <string>

namespace convoy::launcher {

struct FirstFailure {
  int rank = -1;
  std::string cause;  ///< One line, what the exit code does not say; may be empty.
};

/// The failure that explains the others; nothing if no rank failed of its own.
///
/// When one rank fails its neighbours follow within milliseconds, and neither the order of their
/// reports nor the order in which the kernel hands out their exit codes is the order of events. So
/// evidence is weighed: a rank's own failure comes before a report that only says what another's
/// failure did to the reporter, then the earlier before the later. A rank that is blamed and ended
/// cleanly has left too early, and is named.
std::optional<FirstFailure> find_first_failure(std::span<const RankRecord> ranks,
                                               std::span<const TimedReport> reports);

/// The exit code of a job with this first failure: that rank's code or 128 + its signal; where it
/// ended with 0, the code of another rank that did not, or 1.
int exit_code_of(const FirstFailure& failure, std::span<const RankRecord> ranks);

}  // namespace convoy::launcher
