// Which failure explains the others.
#include "programs/convoyrun/first_failure.h"

#include "programs/convoyrun/outcome.h"
#include "support/catch.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include <signal.h>

using namespace convoy::launcher;
using convoy::ErrorKind;
using convoy::FailureReport;

namespace {

RankRecord exited(int rank, int code, double seconds) {
  RankRecord record;
  record.rank = rank;
  record.pid = 100 + rank;
  record.ending = Ending{code, std::nullopt, seconds, 1 << 20};
  return record;
}

RankRecord died(int rank, int signal, double seconds) {
  RankRecord record = exited(rank, 0, seconds);
  record.ending = Ending{std::nullopt, signal, seconds, 1 << 20};
  return record;
}

RankRecord stopped_by_us(int rank, double seconds) {
  RankRecord record = died(rank, SIGTERM, seconds);
  record.was_signalled = true;
  return record;
}

TimedReport report(int reporter, int about, ErrorKind kind, const std::string& text,
                   double seconds) {
  return {{reporter, about, kind, text}, seconds};
}

int first_of(const std::vector<RankRecord>& ranks, const std::vector<TimedReport>& reports = {}) {
  const auto failure = find_first_failure(ranks, reports);
  return failure ? failure->rank : -1;
}

}  // namespace

TEST_CASE("first failure: none where all is well or all were stopped") {
  CHECK(first_of({exited(0, 0, 1), exited(1, 0, 2)}) == -1);
  CHECK(first_of({stopped_by_us(0, 1), exited(1, 0, 2)}) == -1);
}

TEST_CASE("first failure: the earlier of two") {
  CHECK(first_of({exited(0, 1, 2), exited(1, 7, 1), stopped_by_us(2, 2)}) == 1);
  CHECK(exit_code_of({1, ""}, std::vector{exited(0, 1, 2), exited(1, 7, 1)}) == 7);
  CHECK(exit_code_of({0, ""}, std::vector{died(0, SIGSEGV, 2)}) == 139);
}

TEST_CASE("first failure: a crash comes before the neighbours that saw it") {
  // The neighbour noticed the closed socket, and was seen to exit first.
  CHECK(first_of({exited(0, 1, 1.000), died(1, SIGKILL, 1.002)}) == 1);
  CHECK(first_of({exited(0, 1, 1.000), died(1, SIGKILL, 1.5)}) == 0);
  // Also when the launcher's SIGTERM was on its way already.
  auto crashed = died(1, SIGSEGV, 1.002);
  crashed.was_signalled = true;
  CHECK(first_of({exited(0, 1, 1.000), crashed}) == 1);
  auto killed = died(1, SIGKILL, 1.002);
  killed.was_killed = true;
  CHECK(first_of({exited(0, 1, 1.000), killed}) == 0);
}

TEST_CASE("first failure: the exception is the cause, the neighbours' errors are consequences") {
  const std::vector ranks{exited(0, 1, 1.0), exited(1, 1, 1.01), exited(2, 1, 1.2)};
  const std::vector reports{
      report(0, 2, ErrorKind::kPeerLost, "rank 2 closed the connection", 0.9),
      report(2, 2, ErrorKind::kFailed, "loss is not finite", 0.91),
      report(1, 2, ErrorKind::kPeerLost, "rank 2 failed: loss is not finite", 0.92)};
  const auto failure = find_first_failure(ranks, reports);
  REQUIRE(failure);
  CHECK(failure->rank == 2);
  CHECK(failure->cause == "loss is not finite");
}

TEST_CASE("first failure: of ranks that say the same of themselves the lowest, which printed it") {
  const auto says = [](int rank, const char* text, double seconds) {
    return report(rank, rank, ErrorKind::kInvalidArgument, text, seconds);
  };
  const std::vector<RankRecord> ranks{exited(0, 2, 1.1), exited(1, 2, 1.0), exited(2, 2, 1.2)};
  CHECK(first_of(ranks, {says(1, "bad", 0.5), says(2, "bad", 0.6), says(0, "bad", 0.7)}) == 0);
  CHECK(first_of(ranks, {says(1, "bad", 0.5), says(0, "other", 0.7)}) == 1);
  // A rank that ended well after all has failed with nobody.
  CHECK(first_of({exited(0, 0, 2), exited(1, 2, 1.0)},
                 {says(1, "bad", 0.5), says(0, "bad", 0.7)}) == 1);
}

TEST_CASE("first failure: reports about a killed rank name it") {
  const std::vector ranks{exited(0, 1, 1.2), died(1, SIGKILL, 1.0), exited(2, 1, 1.1)};
  const std::vector reports{report(0, 1, ErrorKind::kPeerLost, "rank 1 was killed", 0.8),
                            report(2, 0, ErrorKind::kFailed, "failed earlier", 0.9)};
  const auto failure = find_first_failure(ranks, reports);
  REQUIRE(failure);
  CHECK(failure->rank == 1);
  CHECK(failure->cause.find("out-of-memory") != std::string::npos);
}

TEST_CASE("C052: a rank that left with 0 is the first failure, and the job's code is not 0") {
  const std::vector ranks{exited(0, 1, 2.0), exited(1, 1, 2.1), exited(2, 0, 0.1)};
  const std::vector reports{report(0, 2, ErrorKind::kPeerLost, "rank 2 has left the job", 1.9),
                            report(1, 2, ErrorKind::kPeerLost, "rank 2 has left the job", 1.95)};
  const auto failure = find_first_failure(ranks, reports);
  REQUIRE(failure);
  CHECK(failure->rank == 2);
  CHECK(failure->cause.find("rank 2 left the job") != std::string::npos);
  CHECK(exit_code_of(*failure, ranks) == 1);
}

TEST_CASE("first failure: a report that blames a rank which is just late stays with the reporter") {
  const std::vector ranks{exited(0, 1, 3.0), stopped_by_us(1, 3.5)};
  const auto failure = find_first_failure(
      ranks, std::vector{report(0, 1, ErrorKind::kTimeout, "rank 1 did not arrive", 2.9)});
  REQUIRE(failure);
  CHECK(failure->rank == 0);
  CHECK(failure->cause == "rank 1 did not arrive");
}

TEST_CASE("first failure: a report that led to nothing is no failure") {
  CHECK(first_of({exited(0, 0, 3), exited(1, 0, 3)},
                 {report(0, -1, ErrorKind::kMismatch, "sizes differ", 1)}) == -1);
}

TEST_CASE("first failure: nonsense in reports does no harm") {
  CHECK(first_of({exited(0, 1, 3)}, {report(9, 77, ErrorKind::kPeerLost, "?", 1),
                                     report(0, 55, ErrorKind::kPeerLost, "x", 2)}) == 0);
}

TEST_CASE("first failure: a stopped rank") {
  auto frozen = died(1, SIGKILL, 6);
  frozen.stopped_since = 1;
  frozen.was_killed = true;
  const std::vector ranks{exited(0, 1, 6.1), frozen};
  const auto failure = find_first_failure(ranks, {});
  REQUIRE(failure);
  CHECK(failure->rank == 1);
  CHECK(failure->cause.find("stopped (state T)") != std::string::npos);
}

TEST_CASE("the report is valid JSON whatever the ranks printed") {
  Outcome outcome;
  outcome.run_id = "run";
  outcome.host = "host";
  outcome.exit_code = 3;
  outcome.seconds = 1.5;
  outcome.ranks = {exited(0, 3, 1), stopped_by_us(1, 1.2)};
  outcome.first_failure = FirstFailure{0, "bad \xff bytes"};
  outcome.stderr_tail = {"\"quoted\"", "\xc3\x28", std::string("nul\0nul", 7)};
  const auto json = nlohmann::json::parse(report_json(outcome, {"convoyrun", "\xfe"}));
  CHECK(json["schema"] == 1);
  CHECK(json["world"] == 2);
  CHECK(json["first_failure"]["exit_code"] == 3);
  CHECK(json["first_failure"]["signal"].is_null());
  CHECK(json["first_failure"]["log"].is_null());
  CHECK(json["first_failure"]["stderr_tail"].size() == 3);
  CHECK(json["ranks"][0]["consequence"] == false);
  CHECK(json["ranks"][1]["consequence"] == true);
  CHECK(json["ranks"][1]["signal"] == "SIGTERM");
  CHECK(json["ranks"][1]["exit_code"].is_null());
}
