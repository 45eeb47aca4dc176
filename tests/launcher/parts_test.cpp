// The launcher's pure parts: lines, cores, liveness, environments.
#include "programs/convoyrun/console.h"
#include "programs/convoyrun/cores.h"
#include "programs/convoyrun/line_splitter.h"
#include "programs/convoyrun/liveness.h"
#include "programs/convoyrun/rank_environment.h"
#include "programs/convoyrun/rank_output.h"
#include "programs/convoyrun/signals.h"
#include "programs/convoyrun/text.h"
#include "support/catch.h"

#include <set>
#include <string>
#include <vector>

#include <signal.h>

using namespace convoy::launcher;
using Words = std::vector<std::string>;

TEST_CASE("lines are cut the same for every size of the pieces they come in") {
  const std::string text = "one\n\ntwo\rtwo again\nlonger line here\r\nlast";
  const Words expected{"one", "", "two\rtwo again", "longer line here\r", "last"};
  for (std::size_t size = 1; size <= text.size(); ++size) {
    LineSplitter splitter;
    Words lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    for (std::size_t at = 0; at < text.size(); at += size) {
      splitter.feed(std::string_view(text).substr(at, size), keep);
    }
    CHECK(splitter.pending() == "last");
    splitter.finish(keep);
    splitter.finish(keep);
    CHECK(lines == expected);
  }
}

TEST_CASE("a line above the limit comes in pieces, and nothing is lost") {
  LineSplitter splitter(10);
  std::string all;
  Words lines;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  for (int i = 0; i < 7; ++i) splitter.feed("abcdef", keep);
  splitter.feed("\nnext\n", keep);
  for (const auto& line : lines) all += line;
  CHECK(all == "abcdefabcdefabcdefabcdefabcdefabcdefabcdefnext");
  CHECK(lines.size() > 3);
  CHECK(lines.back() == "next");
}

TEST_CASE("text is cut between characters, never inside one") {
  CHECK(cut_to_columns("abc", 5) == "abc");
  CHECK(cut_to_columns("abc", 3) == "abc");
  CHECK(cut_to_columns("abc", 2) == "ab");
  CHECK(cut_to_columns("abc", 0) == "");
  CHECK(cut_to_columns("\xc3\xa4\xc3\xb6\xc3\xbc", 2) == "\xc3\xa4\xc3\xb6");
}

TEST_CASE("the tail keeps the last twenty lines, cut to a sane length") {
  Tail tail;
  for (int i = 0; i < 30; ++i) tail.add("line " + std::to_string(i));
  REQUIRE(tail.lines().size() == 20);
  CHECK(tail.lines().front() == "line 10");
  CHECK(tail.lines().back() == "line 29");
  tail.add(std::string(100000, 'x'));
  CHECK(tail.lines().back().size() < 2100);
  tail.add("10 %\r20 %\r30 %");
  CHECK(tail.lines().back() == "30 %");
}

TEST_CASE("cores are shared out round robin") {
  const std::vector<int> cores{2, 5, 7};
  CHECK(core_for_rank(BindTo::kNone, cores, 1) == std::nullopt);
  CHECK(core_for_rank(BindTo::kCore, cores, 0) == 2);
  CHECK(core_for_rank(BindTo::kCore, cores, 2) == 7);
  CHECK(core_for_rank(BindTo::kCore, cores, 4) == 5);
  CHECK(threads_per_rank(BindTo::kNone, 8, 2) == 4);
  CHECK(threads_per_rank(BindTo::kNone, 8, 3) == 2);
  CHECK(threads_per_rank(BindTo::kNone, 2, 5) == 1);
  CHECK(threads_per_rank(BindTo::kCore, 8, 2) == 1);
  CHECK_FALSE(usable_cores().empty());
}

TEST_CASE("phrases") {
  CHECK(format_seconds(0.0521) == "0.052 s");
  CHECK(format_seconds(3.14159) == "3.14 s");
  CHECK(format_seconds(123.456) == "123.5 s");
  CHECK(list_ranks({3}) == "rank 3");
  CHECK(list_ranks({0, 2}) == "ranks 0 and 2");
  CHECK(list_ranks({0, 1, 4}) == "ranks 0, 1 and 4");
  CHECK(signal_name(SIGSEGV) == "SIGSEGV");
  CHECK(signal_name(SIGKILL) == "SIGKILL");
  CHECK(describe_ending(Ending{3, {}, 1, 0}) == "exit 3");
  CHECK(describe_ending(Ending{{}, SIGABRT, 1, 0}) == "signal SIGABRT");
}

TEST_CASE("C058: a rank's environment has the launcher's values, once") {
  const char* const outer[] = {"PATH=/bin",
                               "RANK=7",
                               "WORLD_SIZE=8",
                               "MASTER_ADDR=bad",
                               "RANK=9",
                               "RANKLE=1",
                               "TORCHELASTIC_ERROR_FILE=/other",
                               "OMP_NUM_THREADS=3",
                               nullptr};
  const auto inherited = EnvironmentBlock::copy_of(outer);
  JobVariables job;
  job.run_id = "run";
  job.control_address = "unix:@x";
  job.world_size = 5;
  job.master_port = 4000;
  auto block = rank_environment(inherited, job, 3);
  CHECK(block.find("RANK") == "3");
  CHECK(block.find("LOCAL_RANK") == "3");
  CHECK(block.find("WORLD_SIZE") == "5");
  CHECK(block.find("LOCAL_WORLD_SIZE") == "5");
  CHECK(block.find("MASTER_ADDR") == "127.0.0.1");
  CHECK(block.find("MASTER_PORT") == "4000");
  CHECK(block.find("RANKLE") == "1");
  CHECK(block.find("PATH") == "/bin");
  CHECK(block.find("OMP_NUM_THREADS") == "3");
  CHECK(block.find("TORCHELASTIC_ERROR_FILE") == std::nullopt);
  std::set<std::string> names;
  for (const char* entry : block.pointers()) {
    if (entry == nullptr) break;
    const std::string text(entry);
    CHECK(names.insert(text.substr(0, text.find('='))).second);
  }
  job.omp_num_threads = "2";
  CHECK(rank_environment(inherited, job, 0).find("OMP_NUM_THREADS") == "2");
}

namespace {

// Ranks with pids 100, 101, ...; a set of stopped pids; a clock that the test moves.
struct LivenessCase {
  std::vector<RankRecord> ranks;
  std::set<pid_t> stopped;
  Liveness liveness{{}, [this](pid_t pid) { return stopped.contains(pid); }};
  double now = 0;

  explicit LivenessCase(int count) {
    for (int r = 0; r < count; ++r) {
      ranks.emplace_back();
      ranks.back().rank = r;
      ranks.back().pid = 100 + r;
    }
  }

  // Looks whenever it is due until `end`; returns what was found, with its time.
  std::vector<std::pair<double, Liveness::Finding>> run_until(double end) {
    std::vector<std::pair<double, Liveness::Finding>> all;
    while (liveness.next_look() <= end) {
      now = std::max(now, liveness.next_look());
      for (const auto& finding : liveness.look(ranks, now)) all.emplace_back(now, finding);
    }
    now = end;
    return all;
  }
};

}  // namespace

TEST_CASE("liveness: a stop is warned of after 1 s and given up after 5 s") {
  LivenessCase c(3);
  CHECK(c.run_until(2).empty());
  c.stopped = {101};
  const auto found = c.run_until(7.6);
  REQUIRE(found.size() == 2);
  CHECK(found[0].second.rank == 1);
  CHECK(found[0].second.what == Liveness::Finding::What::kWarn);
  CHECK(found[0].first == Approx(3).margin(0.51));
  CHECK(found[1].second.what == Liveness::Finding::What::kGiveUp);
  CHECK(found[1].first == Approx(7).margin(0.51));
}

TEST_CASE("liveness: a rank that goes on is forgiven, and counted anew") {
  LivenessCase c(2);
  c.stopped = {100};
  CHECK(c.run_until(4).size() == 1);
  c.stopped = {};
  const auto found = c.run_until(6);
  REQUIRE(found.size() == 1);
  CHECK(found[0].second.what == Liveness::Finding::What::kMovesAgain);
  c.stopped = {100};
  CHECK(c.run_until(10).size() == 1);
}

TEST_CASE("liveness: behind a wrapper the process that joined is watched too") {
  LivenessCase c(1);
  c.ranks[0].joined_pid = 555;
  c.stopped = {555};
  CHECK(c.run_until(5.2).size() == 2);
}

TEST_CASE("liveness: a launcher that was suspended itself blames nobody") {
  LivenessCase c(1);
  c.stopped = {100};
  CHECK(c.run_until(0.9).empty());
  c.now = 500;
  CHECK(c.liveness.look(c.ranks, c.now).empty());
  c.stopped = {};
  CHECK(c.run_until(510).empty());
}
