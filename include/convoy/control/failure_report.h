// What ranks tell the launcher when they fail, and which of several reports is the root cause.
#pragma once

#include "convoy/base/error.h"

#include <span>
#include <string>

namespace convoy {

/// One rank's own account of its failure.
struct FailureReport {
  int reporter = -1;  ///< World rank that sent it.
  int about = -1;     ///< World rank it blames; -1 when no single rank is to blame.
  ErrorKind kind = ErrorKind::kFailed;
  std::string text;
};

/// True if the report only says what another rank's failure did to the reporter (a lost peer, a
/// timeout, a communicator that had failed).
bool is_consequence(const FailureReport& report) noexcept;

/// Index of the report that explains the others, reports being in order of arrival: the first one,
/// followed along its blame as long as the blamed rank has reported too. -1 for no reports.
int root_cause(std::span<const FailureReport> reports) noexcept;

/// The report as the other ranks' error: a rank's own failure becomes kPeerLost "rank 3 failed:
/// ...", a failure of a group keeps its kind and text, so that it reads the same on all ranks.
Error as_seen_by_peers(const FailureReport& report);

}  // namespace convoy
