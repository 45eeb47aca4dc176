// Failures of ranks: who is named, with what, how soon, and with which exit code.
#include "launcher/launched.h"
#include "support/catch.h"

#include <nlohmann/json.hpp>

#include <regex>
#include <string>

#include <signal.h>

using namespace convoy::testing;
using Catch::Matchers::Contains;

namespace {

// The lines from "first failure" on.
std::vector<std::string> failure_block(const std::string& err) {
  const auto at = err.find("convoyrun: first failure: ");
  return at == std::string::npos ? std::vector<std::string>{} : lines_of(err.substr(at));
}

}  // namespace

TEST_CASE("row 1: exit codes and signals of a rank become the launcher's") {
  const struct {
    const char* step;
    int code;
    const char* text;
  } cases[] = {{"1@exit:3", 3, "exit 3"},
               {"1@exit:255", 255, "exit 255"},
               {"1@raise:9", 137, "signal SIGKILL"},
               {"1@raise:11", 139, "signal SIGSEGV"},
               {"1@raise:6", 134, "signal SIGABRT"},
               {"1@raise:15", 143, "signal SIGTERM"}};
  for (const auto& c : cases) {
    INFO(c.step);
    Launched run(with_worker({"-n", "3"}, {"pid", "1@sleep:50ms", c.step, "sleep:60"}));
    CHECK(run.wait(Seconds(10)) == c.code);
    const auto block = failure_block(run.err());
    REQUIRE_FALSE(block.empty());
    const std::regex line("convoyrun: first failure: rank 1 \\(host [^ ,]+, pid [0-9]+\\): " +
                          std::string(c.text) + " after [0-9.]+ s, last operation none, log none");
    CHECK(std::regex_match(block[0], line));
    CHECK(block.size() >= 3);  // The two others follow.
  }
}

TEST_CASE("a rank that has told of its failure ends with its own exit code, also when it is slow") {
  // Neither joins; rank 1 is gone while rank 0, which printed for both, still cleans up.
  Launched run(with_worker({"-n", "2"}, {"0@linger:400ms", "throw:bad input"}));
  CHECK(run.wait(Seconds(10)) == 1);
  const auto block = failure_block(run.err());
  REQUIRE_FALSE(block.empty());
  CHECK_THAT(block[0], Contains("first failure: rank 0") && Contains("): exit 1 after"));
}

TEST_CASE("row 1: SIGKILL from outside is explained") {
  Launched run(with_worker({"-n", "2"}, {"0@raise:9", "sleep:60"}));
  CHECK(run.wait(Seconds(10)) == 137);
  CHECK_THAT(run.err(), Contains("out-of-memory"));
}

TEST_CASE("row 1: the last operation is known even after SIGKILL, and survivors hear of it") {
  Launched run(
      with_worker({"-n", "3"}, {"join", "2@mark:all_reduce:418:layers.3", "barrier:a",
                                "2@mark:all_reduce:418:layers.3", "2@raise:9", "failure"}));
  CHECK(run.wait(Seconds(10)) == 137);
  const auto err = run.err();
  CHECK_THAT(err, Contains("last operation all_reduce #418 'layers.3'"));
  // What the survivors were told, in their own words: who, where, how, and where it was.
  CHECK(std::regex_search(err, std::regex("\\[[01]\\] error: .*rank 2 \\(host .*pid [0-9]+\\) was "
                                          "ended by SIGKILL.*all_reduce #418 'layers.3'")));
  CHECK_THAT(failure_block(err).at(0), Contains("rank 2"));
}

TEST_CASE("row 2: the text of an exception is the root cause, the neighbours are consequences") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-n", "4", "--report", folder.path("r.json")},
                           {"join", "barrier:a", "2@throw:loss is not finite", "failure"}));
  CHECK(run.wait(Seconds(10)) == 1);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() > 2);
  CHECK_THAT(block[0], Contains("first failure: rank 2"));
  CHECK_THAT(block[0], Contains("exit 1"));
  CHECK_THAT(block[1], Contains("loss is not finite"));
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  CHECK(report["first_failure"]["rank"] == 2);
  CHECK(report["first_failure"]["message"] == "loss is not finite");
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(report["ranks"][static_cast<std::size_t>(rank)]["consequence"] == (rank != 2));
  }
}

TEST_CASE("row 3: a stopped rank is warned of, named, killed, and the launcher ends") {
  Launched run(with_worker({"-n", "3"}, {"join", "barrier:a", "1@pid", "failure"}));
  run.wait_for_out("pid");
  const auto begin = std::chrono::steady_clock::now();
  ::kill(number_after(run.out(), "pid"), SIGSTOP);
  run.wait_for_err("rank 1", Seconds(5));
  const Seconds warned = std::chrono::steady_clock::now() - begin;
  CHECK_THAT(run.err(), Contains("stopped (state T)"));
  CHECK(run.wait(Seconds(12)) == 137);
  const Seconds ended = std::chrono::steady_clock::now() - begin;
  // 1 s and 6 s, and what a loaded machine adds.
  CHECK(warned.count() > 0.9);
  CHECK(warned.count() < 3);
  CHECK(ended.count() > 4.9);
  CHECK(ended.count() < 9);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() > 1);
  CHECK_THAT(block[0], Contains("first failure: rank 1"));
  CHECK_THAT(block[1], Contains("stopped (state T)"));
  CHECK_THAT(run.err(), Contains("is stopped (state T) since"));
}

TEST_CASE("row 3: a stop shorter than five seconds does nothing but warn") {
  Launched run(
      with_worker({"-n", "2"}, {"1@pid", "join", "barrier:a", "sleep:2500ms", "barrier:b"}));
  run.wait_for_out("pid");
  const auto pid = number_after(run.out(), "pid");
  ::kill(pid, SIGSTOP);
  run.wait_for_err("stopped (state T)", Seconds(5));
  ::kill(pid, SIGCONT);
  CHECK(run.wait() == 0);
  CHECK_THAT(run.err(), Contains("goes on after a stop"));
}

TEST_CASE("C052: a rank that ends with 0 while others wait is named, and the job fails") {
  Launched run(with_worker({"-n", "4"}, {"join", "3@exit:0", "barrier:a"}));
  CHECK(run.wait(Seconds(15)) == 1);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() > 1);
  CHECK_THAT(block[0], Contains("first failure: rank 3"));
  CHECK_THAT(block[0], Contains("exit 0"));
  CHECK_THAT(run.err(), Contains("error: "));
  CHECK_THAT(run.err(), Contains("rank 3 has left the job"));
}

TEST_CASE("a rank that ends with 0 early, and is needed by nobody, is no failure") {
  Launched run(with_worker({"-n", "3"}, {"join", "0@exit:0", "sleep:5"}));
  CHECK(run.wait(Seconds(15)) == 0);
}

TEST_CASE("C053: the first of two crashes is named, with its signal and log, the later after it") {
  const TemporaryFolder folder;
  // Rank 1 ignores SIGTERM, so that it lives to abort by itself later.
  Launched run(with_worker({"-n", "4", "--log-dir", folder.path("logs"), "--shutdown-timeout", "5",
                            "--report", folder.path("r.json")},
                           {"1@ignore:15", "2@err:about to crash", "2@sleep:200ms", "2@raise:11",
                            "1@sleep:700ms", "1@raise:6", "sleep:60"}));
  CHECK(run.wait(Seconds(10)) == 139);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() >= 5);
  CHECK_THAT(block[0], Contains("first failure: rank 2"));
  CHECK_THAT(block[0], Contains("SIGSEGV"));
  CHECK_THAT(block[0], Contains("attempt_0/2/stderr.log"));
  CHECK_THAT(run.err(), Contains("later: rank 1"));
  CHECK_THAT(run.err(), Contains("signal SIGABRT"));
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  CHECK(report["exit_code"] == 139);
  CHECK(report["first_failure"]["signal"] == "SIGSEGV");
  CHECK(report["first_failure"]["exit_code"].is_null());
  CHECK(report["first_failure"]["stderr_tail"][0] == "about to crash");
  const auto log = report["first_failure"]["log"].get<std::string>();
  CHECK(read_file(log) == "about to crash\n");
}

TEST_CASE("the failure block is last, with at most twenty lines of the rank's stderr") {
  Launched run(with_worker({"-n", "2"}, {"errs:50", "0@exit:9", "sleep:60"}));
  CHECK(run.wait(Seconds(10)) == 9);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() == 22);
  CHECK(block[1] == "[0] stderr line 30");
  CHECK(block[20] == "[0] stderr line 49");
  CHECK_THAT(block[21], Contains("convoyrun: later: rank 1"));
  // --quiet leaves the block.
  Launched quiet(with_worker({"-q", "-n", "2"}, {"0@exit:9", "sleep:60"}));
  CHECK(quiet.wait(Seconds(10)) == 9);
  CHECK(failure_block(quiet.err()).size() == 2);
}

TEST_CASE("stderr that goes to a file only is quoted from there") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-n", "2", "--log-dir", folder.path(), "--redirects", "3"},
                           {"errs:30", "0@exit:5", "sleep:60"}));
  CHECK(run.wait(Seconds(10)) == 5);
  const auto block = failure_block(run.err());
  REQUIRE(block.size() == 22);
  CHECK(block[20] == "[0] stderr line 29");
}
