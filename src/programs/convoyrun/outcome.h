// How a run ended: everything that the failure block and the report say.
#pragma once

#include "programs/convoyrun/first_failure.h"
#include "programs/convoyrun/rank_record.h"

#include <optional>
#include <string>
#include <vector>

namespace convoy::launcher {

struct Outcome {
  std::string run_id;
  std::string host;
  int exit_code = 0;
  double seconds = 0;
  std::vector<RankRecord> ranks;
  std::optional<FirstFailure> first_failure;
  std::string log_path;  ///< Of the first failure's stderr (or stdout); may be empty.
  std::vector<std::string> stderr_tail;  ///< Of the first failure.
  std::string not_runnable;  ///< Why the program could not be executed; empty when it was.
};

/// True if this rank's end is a consequence of the first failure or of the launcher's signals.
bool is_consequence(const Outcome& outcome, const RankRecord& rank);

/// The lines of the failure block, without prefix: the first for what failed, then what explains
/// it. Call it with a first failure only.
struct FailureBlock {
  std::vector<std::string> head;   ///< Lines of the launcher.
  std::vector<std::string> later;  ///< Lines of the launcher, one for each rank that failed later.
};
FailureBlock describe_failure(const Outcome& outcome);

/// The report as JSON text (schema 1 of docs/launcher.md).
std::string report_json(const Outcome& outcome, const std::vector<std::string>& argv);

}  // namespace convoy::launcher
