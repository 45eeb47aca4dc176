// Orders the failure reports of a job. Pure: no sockets, no clocks.
#include "convoy/control/failure_report.h"

#include "convoy/base/check.h"

#include <algorithm>

namespace convoy {
namespace {

bool blames_another(const FailureReport& report) {
  return report.about >= 0 && report.about != report.reporter;
}

}  // namespace

bool is_consequence(const FailureReport& report) noexcept {
  switch (report.kind) {
    case ErrorKind::kPeerLost:
    case ErrorKind::kTimeout: return blames_another(report);
    case ErrorKind::kFailed: return report.about != report.reporter;
    default: return false;
  }
}

int root_cause(std::span<const FailureReport> reports) noexcept {
  if (reports.empty()) return -1;
  const auto by_reporter = [&](int rank) {
    const auto found = std::find_if(reports.begin(), reports.end(),
                                    [&](const auto& r) { return r.reporter == rank; });
    return found == reports.end() ? -1 : static_cast<int>(found - reports.begin());
  };
  int cause = 0;
  // Ranks may blame each other in a circle; no chain is longer than the reports.
  for (std::size_t step = 0; step < reports.size(); ++step) {
    const auto& report = reports[static_cast<std::size_t>(cause)];
    if (!is_consequence(report)) return cause;
    const int blamed = by_reporter(report.about);
    if (blamed < 0) break;
    cause = blamed;
  }
  if (!is_consequence(reports[static_cast<std::size_t>(cause)])) return cause;
  // The blame leads nowhere: a report of a rank's own trouble explains more than any consequence.
  const auto own = std::find_if(reports.begin(), reports.end(),
                                [](const auto& r) { return !is_consequence(r); });
  return own == reports.end() ? 0 : static_cast<int>(own - reports.begin());
}

Error as_seen_by_peers(const FailureReport& report) {
  const bool is_of_group =
      blames_another(report) || is_consequence(report) || report.kind == ErrorKind::kMismatch ||
      report.kind == ErrorKind::kTimeout || report.kind == ErrorKind::kPeerLost;
  if (is_of_group) return Error(report.kind, report.text, report.about);
  return Error(ErrorKind::kPeerLost, concat("rank ", report.reporter, " failed: ", report.text),
               report.reporter);
}

}  // namespace convoy
