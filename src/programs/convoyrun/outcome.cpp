// Words and JSON for the end of a run.
#include "programs/convoyrun/outcome.h"

#include "convoy/base/check.h"
#include "programs/convoyrun/signals.h"
#include "programs/convoyrun/text.h"

#include <nlohmann/json.hpp>

namespace convoy::launcher {

namespace {

using nlohmann::json;

json exit_code_json(const RankRecord& rank) {
  return rank.ending && rank.ending->exit_code ? json(*rank.ending->exit_code) : json();
}

json signal_json(const RankRecord& rank) {
  return rank.ending && rank.ending->signal ? json(signal_name(*rank.ending->signal)) : json();
}

json seconds_json(const RankRecord& rank) {
  return rank.ending ? json(rank.ending->seconds) : json();
}

json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }

json first_failure_json(const Outcome& outcome) {
  if (!outcome.first_failure) return json();
  const int number = outcome.first_failure->rank;
  const RankRecord& rank = outcome.ranks[static_cast<std::size_t>(number)];
  return {{"rank", number},
          {"local_rank", number},
          {"host", outcome.host},
          {"pid", rank.pid > 0 ? json(rank.pid) : json()},
          {"exit_code", exit_code_json(rank)},
          {"signal", signal_json(rank)},
          {"seconds", seconds_json(rank)},
          {"operation", rank.mark.operation.empty() ? json() : json(describe_operation(rank.mark))},
          {"message", text_or_null(outcome.first_failure->cause)},
          {"log", text_or_null(outcome.log_path)},
          {"stderr_tail", outcome.stderr_tail}};
}

}  // namespace

bool is_consequence(const Outcome& outcome, const RankRecord& rank) {
  const bool is_first = outcome.first_failure && outcome.first_failure->rank == rank.rank;
  return !is_first && rank.ending && !rank.ending->is_clean();
}

FailureBlock describe_failure(const Outcome& outcome) {
  const FirstFailure& failure = *outcome.first_failure;
  const RankRecord& first = outcome.ranks[static_cast<std::size_t>(failure.rank)];
  FailureBlock block;
  block.head.push_back(
      concat("first failure: rank ", failure.rank, " (host ", outcome.host, ", pid ", first.pid,
             "): ", describe_ending(first.ending), " after ",
             format_seconds(first.ending ? first.ending->seconds : outcome.seconds),
             ", last operation ", describe_operation(first.mark), ", log ",
             outcome.log_path.empty() ? "none" : outcome.log_path));
  if (!failure.cause.empty()) block.head.push_back(concat("cause: ", failure.cause));

  for (const auto& rank : outcome.ranks) {
    if (!is_consequence(outcome, rank)) continue;
    const char* why = rank.was_killed      ? "consequence: killed by convoyrun"
                      : rank.was_signalled ? "consequence: stopped by convoyrun"
                                           : "consequence";
    block.later.push_back(concat("later: rank ", rank.rank, " (pid ", rank.pid,
                                 "): ", describe_ending(rank.ending), " after ",
                                 format_seconds(rank.ending->seconds), ", ", why));
  }
  return block;
}

std::string report_json(const Outcome& outcome, const std::vector<std::string>& argv) {
  json ranks = json::array();
  for (const auto& rank : outcome.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"host", outcome.host},
                     {"pid", rank.pid > 0 ? json(rank.pid) : json()},
                     {"exit_code", exit_code_json(rank)},
                     {"signal", signal_json(rank)},
                     {"seconds", seconds_json(rank)},
                     {"max_rss", rank.ending ? json(rank.ending->max_rss) : json()},
                     {"consequence", is_consequence(outcome, rank)}});
  }
  const json report{{"schema", 1},
                    {"run_id", outcome.run_id},
                    {"argv", argv},
                    {"world", outcome.ranks.size()},
                    {"exit_code", outcome.exit_code},
                    {"seconds", outcome.seconds},
                    {"first_failure", first_failure_json(outcome)},
                    {"ranks", ranks}};
  // Whatever bytes a rank printed, the file is UTF-8.
  return report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace convoy::launcher
