// Weighs exit codes, signals and reports against each other.
#include "programs/convoyrun/first_failure.h"

#include "convoy/base/check.h"
#include "programs/convoyrun/text.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include <signal.h>

namespace convoy::launcher {

namespace {

// A crash closes a rank's sockets before its parent can see it end, so a neighbour that notices can
// be seen to end first. Such signals are hardly ever a consequence; they are dated back by this.
constexpr double kCrashLead = 0.1;

bool is_crash(const RankRecord& rank) {
  constexpr std::array kCrashes{SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  const auto signal = rank.ending ? rank.ending->signal : std::nullopt;
  if (signal == SIGKILL && rank.was_killed) return false;
  return signal && std::find(kCrashes.begin(), kCrashes.end(), *signal) != kCrashes.end();
}

// One rank's sign of failure, ordered by how likely it is the cause.
struct Evidence {
  bool is_secondary = false;
  double seconds = 0;
  int rank = -1;
  const FailureReport* report = nullptr;

  bool operator<(const Evidence& other) const {
    return std::tie(is_secondary, seconds, rank) <
           std::tie(other.is_secondary, other.seconds, other.rank);
  }
};

const TimedReport* report_of(int rank, std::span<const TimedReport> reports) {
  const auto found = std::find_if(reports.begin(), reports.end(),
                                  [&](const auto& timed) { return timed.report.reporter == rank; });
  return found == reports.end() ? nullptr : &*found;
}

std::optional<Evidence> evidence_of(const RankRecord& rank, std::span<const TimedReport> reports) {
  if (rank.stopped_since) return Evidence{false, *rank.stopped_since, rank.rank, nullptr};
  if (!rank.ending || rank.ending->is_clean()) return std::nullopt;
  // A rank that reported and then had to be stopped has failed all the same.
  if (const auto* timed = report_of(rank.rank, reports)) {
    return Evidence{is_consequence(timed->report), timed->seconds, rank.rank, &timed->report};
  }
  // SIGTERM does not make a rank crash: that it was sent in the meantime changes nothing.
  if (is_crash(rank)) return Evidence{false, rank.ending->seconds - kCrashLead, rank.rank, nullptr};
  if (!rank.has_failed()) return std::nullopt;
  return Evidence{false, rank.ending->seconds, rank.rank, nullptr};
}

std::string cause_of(const RankRecord& rank, const FailureReport* report) {
  if (rank.stopped_since) {
    return concat("rank ", rank.rank, " was stopped (state T) for ",
                  format_seconds(rank.ending ? rank.ending->seconds - *rank.stopped_since : 0),
                  "; convoyrun killed it");
  }
  if (report != nullptr) return report->text;
  if (rank.ending && rank.ending->signal == SIGKILL && !rank.was_killed) {
    return "SIGKILL came from outside the job: maybe the kernel's out-of-memory killer (see dmesg)";
  }
  return "";
}

}  // namespace

std::optional<FirstFailure> find_first_failure(std::span<const RankRecord> ranks,
                                               std::span<const TimedReport> reports) {
  std::optional<Evidence> first;
  for (const auto& rank : ranks) {
    const auto evidence = evidence_of(rank, reports);
    if (evidence && (!first || *evidence < *first)) first = evidence;
  }
  if (!first) return std::nullopt;

  if (first->report != nullptr) {
    std::vector<FailureReport> plain;
    for (const auto& timed : reports) plain.push_back(timed.report);
    const FailureReport& root = plain[static_cast<std::size_t>(root_cause(plain))];
    const bool is_usable = root.reporter >= 0 && root.reporter < static_cast<int>(ranks.size()) &&
                           is_consequence(root) == first->is_secondary;
    if (is_usable) {
      first->rank = root.reporter;
      first->report = &report_of(root.reporter, reports)->report;
    }
    // All ranks may say the same of themselves; the lowest is the one that printed it.
    for (const auto& timed : reports) {
      const auto& other = timed.report;
      const bool is_lower = other.reporter >= 0 && other.reporter < first->rank;
      if (is_lower && other.text == first->report->text &&
          is_consequence(other) == first->is_secondary &&
          evidence_of(ranks[static_cast<std::size_t>(other.reporter)], reports)) {
        first->rank = other.reporter;
        first->report = &other;
      }
    }
    const int blamed = first->report->about;
    const bool is_known = blamed >= 0 && blamed < static_cast<int>(ranks.size());
    if (first->is_secondary && is_known && blamed != first->rank) {
      const auto& ending = ranks[static_cast<std::size_t>(blamed)].ending;
      if (ending && ending->is_clean()) {
        return FirstFailure{
            blamed, concat("rank ", blamed, " left the job while others still needed it; rank ",
                           first->rank, " says: ", first->report->text)};
      }
    }
  }
  return FirstFailure{first->rank,
                      cause_of(ranks[static_cast<std::size_t>(first->rank)], first->report)};
}

int exit_code_of(const FirstFailure& failure, std::span<const RankRecord> ranks) {
  const auto code = [](const RankRecord& rank) {
    if (!rank.ending) return 0;
    return rank.ending->signal ? 128 + *rank.ending->signal : rank.ending->exit_code.value_or(0);
  };
  if (const int own = code(ranks[static_cast<std::size_t>(failure.rank)])) return own;
  for (const auto& rank : ranks) {
    if (rank.has_failed() && code(rank) != 0) return code(rank);
  }
  return 1;
}

}  // namespace convoy::launcher
