// Ranks that die, stop, hang, leave or never come: who is named, and how soon.
#include "comm/rank_processes.h"
#include "support/catch.h"

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

using namespace convoy::test;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// Limits of the fault matrix, with room for a loaded machine, and more for the thread sanitizer,
// under which one large reduction takes seconds.
#ifdef __SANITIZE_THREAD__
constexpr auto kDeathLimit = 20s;
#else
constexpr auto kDeathLimit = 3s;
#endif

// The line that a worker prints for its error.
std::string error_line(const RankResult& result) {
  const auto begin = result.output.find("error ");
  if (begin == std::string::npos) return {};
  return result.output.substr(begin, result.output.find('\n', begin) - begin);
}

// All survivors end with one and the same text, which has these parts.
void require_same_error(RankProcesses& ranks, const std::vector<int>& survivors,
                        const std::vector<std::string>& parts, std::chrono::seconds longest) {
  std::string first;
  for (const int rank : survivors) {
    const auto begin = Clock::now();
    const auto result = ranks.finish(rank, longest);
    const auto line = error_line(result);
    INFO("rank " << rank << ": " << result.output);
    CHECK(result.exit_code == 1);
    CHECK(Clock::now() - begin < longest);
    if (first.empty()) first = line;
    CHECK(line == first);
    for (const auto& part : parts) {
      INFO("wanted: " << part);
      CHECK(line.find(part) != std::string::npos);
    }
  }
}

std::string pid_text(const RankProcesses& ranks, int rank) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(ranks.pid(rank)) + ")";
}

}  // namespace

TEST_CASE("C074: a rank killed in a loop of all_reduces is named by all others at once") {
  const auto number = GENERATE(SIGKILL, SIGSEGV, SIGABRT);
  const auto mebibytes = GENERATE(std::string("1"), std::string("64"));
  RankProcesses ranks(4, "loop", {mebibytes, "60000", "10000"});
  for (const int rank : {0, 1, 2, 3}) REQUIRE(ranks.wait_for_output(rank, "looping", 60s));
  const auto who = pid_text(ranks, 2);
  const auto begin = Clock::now();
  ranks.signal(2, number);
  require_same_error(ranks, {0, 1, 3},
                     {"error peer_lost rank 2", who, "has ended without leaving", "all_reduce #",
                      "'round ", "Float"},
                     std::chrono::seconds(kDeathLimit));
  CHECK(Clock::now() - begin < 2 * kDeathLimit);
}

TEST_CASE("a stopped rank is warned about, then named, without any time limit passing") {
  RankProcesses ranks(3, "loop", {"1", "60000", "50000"});
  for (const int rank : {0, 1, 2}) REQUIRE(ranks.wait_for_output(rank, "looping", 60s));
  const auto who = pid_text(ranks, 1);
  ranks.signal(1, SIGSTOP);
  const auto begin = Clock::now();
  REQUIRE(ranks.wait_for_output(0, who + " is stopped", 4s));
  require_same_error(ranks, {0, 2}, {"error peer_lost rank 1", who, "is stopped", "all_reduce #"},
                     10s);
  const auto passed = Clock::now() - begin;
  CHECK(passed > 3s);
  CHECK(passed < 10s);
}

TEST_CASE("a rank that was stopped and goes on in time does no harm") {
  RankProcesses ranks(2, "loop", {"1", "60000", "50000"});
  for (const int rank : {0, 1}) REQUIRE(ranks.wait_for_output(rank, "looping", 60s));
  ranks.signal(1, SIGSTOP);
  std::this_thread::sleep_for(2s);
  ranks.signal(1, SIGCONT);
  std::this_thread::sleep_for(5s);
  // Both still run: only the end of the other one ends rank 0.
  ranks.signal(1, SIGKILL);
  require_same_error(ranks, {0}, {"has ended without leaving"}, std::chrono::seconds(kDeathLimit));
}

TEST_CASE("a rank that never enters an operation is named with its last one at the time limit") {
  RankProcesses ranks(4, "stuck", {"2", "3000"});
  for (const int rank : {0, 1, 2, 3}) REQUIRE(ranks.wait_for_output(rank, "waiting", 60s));
  const auto who = pid_text(ranks, 2);
  const auto begin = Clock::now();
  CHECK(ranks.wait_for_output(0, who + " has not entered it", 3s));  // The warning.
  require_same_error(ranks, {0, 1, 3},
                     {"error timeout rank 2", "all_reduce #3 'layer3'", who + " has not entered it",
                      "all_reduce #2 'layer2'"},
                     6s);
  CHECK(Clock::now() - begin < 6s);
}

TEST_CASE("C052: a rank that leaves early is named by the others") {
  const auto leaver = GENERATE(0, 3);
  RankProcesses ranks(4, "early", {std::to_string(leaver)});
  const auto who = pid_text(ranks, leaver);
  std::vector<int> others;
  for (int r = 0; r < 4; ++r) {
    if (r != leaver) others.push_back(r);
  }
  require_same_error(ranks, others,
                     {"error peer_lost rank " + std::to_string(leaver), who, "has left the group",
                      "barrier #1 'end of epoch'"},
                     20s);
  CHECK(ranks.finish(leaver).exit_code == 0);
}

TEST_CASE("an exception in one rank reaches the others as its leaving") {
  RankProcesses ranks(3, "raise", {"1"});
  require_same_error(ranks, {0, 2},
                     {"error peer_lost rank 1", "has left the group", "all_reduce #8"}, 20s);
  CHECK(ranks.finish(1).says("out of ideas"));
}

TEST_CASE("ranks that do not come are named when the time is up") {
  SECTION("two of four") {
    RankProcesses ranks(4, "join", {"2000", "2"}, {1, 3});
    require_same_error(ranks, {0, 2}, {"error timeout", "ranks 1 and 3"}, 20s);
  }
  SECTION("with a time limit that ends sooner on the rank that came first") {
    RankProcesses ranks(4, "join", {"2000", "2", "700"}, {1, 3});
    require_same_error(ranks, {0, 2}, {"error timeout", "ranks 1 and 3"}, 20s);
  }
  SECTION("rank 0") {
    RankProcesses ranks(3, "join", {"2000", "2"}, {0});
    require_same_error(ranks, {1, 2}, {"error timeout", "rank 0"}, 20s);
  }
}

TEST_CASE("a limit of file sizes is one error on all ranks, and the group lives on") {
  const auto limited = GENERATE(0, 2);
  RankProcesses ranks(3, "limit", {std::to_string(limited), "20000000", "32"});
  for (const auto& result : ranks.finish_all()) {
    INFO(result.output);
    CHECK(result.exit_code == 0);
    CHECK(result.says("done"));
  }
}

TEST_CASE("a limit that forbids the first segment is one error on all ranks") {
  const auto late_ms = GENERATE(std::string("0"), std::string("3000"));
  RankProcesses ranks(3, "start_limit", {"1000000", late_ms});
  require_same_error(ranks, {0, 1, 2},
                     {"error memory", "found 1000000 bytes", "File too large", "ulimit -f"}, 20s);
}
