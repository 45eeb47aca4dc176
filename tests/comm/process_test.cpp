// Ranks as processes: random sequences, groups made and ended, clean ends.
#include "comm/rank_processes.h"
#include "support/catch.h"

#include <filesystem>
#include <set>
#include <string>

using namespace convoy::test;
using namespace std::chrono_literals;

namespace {

void require_all_done(RankProcesses& ranks, std::chrono::seconds longest = 60s) {
  int rank = 0;
  for (const auto& result : ranks.finish_all(longest)) {
    INFO("rank " << rank++ << ": " << result.output);
    CHECK(result.exit_code == 0);
    CHECK(result.says("done"));
  }
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

}  // namespace

TEST_CASE("random sequences over processes") {
  const auto world = GENERATE(2, 3, 5);
  RankProcesses ranks(world, "random", {std::to_string(1000 + world), "300"});
  require_all_done(ranks);
}

TEST_CASE("C077: groups of processes are made and ended in 20 rounds") {
  RankProcesses ranks(2, "rounds", {"20"});
  require_all_done(ranks);
}

TEST_CASE("C077: after a failure a new group of the same name works") {
  RankProcesses ranks(3, "recover");
  require_all_done(ranks);
}

TEST_CASE("a rank that needs longer finds everything the others left behind for it") {
  const auto slow = GENERATE(0, 2);
  RankProcesses ranks(3, "late", {std::to_string(slow), "700"});
  require_all_done(ranks);
}

TEST_CASE("nothing has a name in shared memory") {
  const auto before = shared_files();
  RankProcesses ranks(2, "loop", {"1", "20000", "10000"});
  REQUIRE(ranks.wait_for_output(0, "looping", 30s));
  CHECK(shared_files() == before);
}
