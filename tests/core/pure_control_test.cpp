// The parts of the control channel that know no sockets.
#include "control/failure_latch.h"
#include "control/membership.h"
#include "control/store_table.h"
#include "control/verdict_board.h"
#include "control/wait_list.h"
#include "control/wait_text.h"
#include "convoy/control/failure_report.h"
#include "convoy/control/frame.h"
#include "core/support.h"
#include "support/catch.h"

using namespace convoy;
using namespace convoy::test;

TEST_CASE("The table keeps within its total size") {
  StoreTable table(1000);
  table.set("a", std::string(499, 'x'));
  table.set("b", std::string(499, 'x'));
  const auto error = error_of([&] { table.set("c", ""); });
  CHECK(error.kind() == ErrorKind::kMemory);
  CHECK(contains(error.what(), "1000 of 1000 bytes are in use"));
  CHECK(table.find("c") == nullptr);
  CHECK(error_of([&] { table.set("b", std::string(500, 'x')); }).kind() == ErrorKind::kMemory);
  CHECK(table.find("b")->size() == 499);
  table.set("b", "");  // Makes room.
  table.set("c", std::string(498, 'x'));
  CHECK(table.remove("a"));
  table.set("d", std::string(499, 'x'));
}

TEST_CASE("The wait list fulfils requests when their last key appears") {
  WaitList waits;
  waits.add({1, 1}, {"a", "b"});
  waits.add({1, 2}, {"b"});
  waits.add({2, 1}, {"b", "c"});
  CHECK(waits.count(1) == 2);
  CHECK(waits.contains({2, 1}));
  CHECK(waits.appeared("x").empty());
  CHECK(waits.appeared("a").empty());
  CHECK(waits.appeared("b") == std::vector<RequestId>{{1, 1}, {1, 2}});
  CHECK(waits.count(1) == 0);
  CHECK(waits.cancel({2, 1}) == std::set<std::string>{"c"});
  CHECK(waits.cancel({2, 1}).empty());
  CHECK(waits.appeared("c").empty());
  waits.add({3, 1}, {"d"});
  waits.add({3, 9}, {"d", "e"});
  waits.add({4, 1}, {"d"});
  waits.drop(3);
  CHECK(waits.appeared("d") == std::vector<RequestId>{{4, 1}});
}

TEST_CASE("Membership follows the life of ranks") {
  Membership members(3);
  CHECK(members.never_joined() == std::vector<int>{0, 1, 2});
  members.join(1, 100);
  CHECK(members.never_joined() == std::vector<int>{0, 2});
  CHECK(contains(members.objection(1, 200),
                 "two processes claim to be rank 1: 100, which came first, and 200"));
  CHECK(contains(members.objection(1, 100), "has a session already"));
  CHECK(members.objection(0, 200).empty());
  members.leave(1, true);
  CHECK(members.gone() == std::vector<int>{1});
  CHECK(members.at(1).may_report);
  CHECK(members.objection(1, 200).empty());
  members.join(1, 200);
  CHECK(members.gone().empty());
  members.finish(1);
  CHECK(members.unfinished() == std::vector<int>{0, 2});
  members.exit(1);
  members.exit(1);
  CHECK(contains(members.objection(1, 300), "whose process has ended"));
  members.exit(0);
  CHECK(members.gone() == std::vector<int>{0, 1});
  CHECK(members.never_joined() == std::vector<int>{0, 2});
  CHECK(error_of([&] { members.join(0, 1); }).kind() == ErrorKind::kInternal);
  CHECK(error_of([&] { members.leave(2, false); }).kind() == ErrorKind::kInternal);
}

TEST_CASE("Lists of ranks and keys read well and stay short") {
  CHECK(name_ranks({2}) == "rank 2");
  CHECK(name_ranks({2, 5}) == "ranks 2 and 5");
  CHECK(name_ranks({0, 1, 2}) == "ranks 0, 1 and 2");
  CHECK(name_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
  const std::vector<std::string> keys{"a", "b"};
  CHECK(name_keys(keys, 2) == "keys 'a' and 'b'");
  CHECK(name_keys(keys, 5) == "keys 'a', 'b' and 3 more");
  CHECK(name_keys(std::vector<std::string>{"a"}, 1) == "key 'a'");
  CHECK(name_wait(450ms) == "450 ms");
  CHECK(name_wait(3040ms) == "3.0 s");
}

TEST_CASE("The root cause is found behind its consequences") {
  const FailureReport lost{0, 2, ErrorKind::kPeerLost, "rank 2 has left"};
  const FailureReport failed{1, -1, ErrorKind::kFailed, "failed earlier"};
  const FailureReport own{2, -1, ErrorKind::kInvalidArgument, "no such file"};
  const FailureReport thrown{3, 3, ErrorKind::kFailed, "bad_alloc"};
  using Reports = std::vector<FailureReport>;
  CHECK(root_cause({}) == -1);
  CHECK(root_cause(Reports{own}) == 0);
  CHECK(root_cause(Reports{lost}) == 0);
  CHECK(root_cause(Reports{lost, failed, own}) == 2);
  CHECK(root_cause(Reports{failed, own}) == 1);
  CHECK(root_cause(Reports{own, thrown}) == 0);
  CHECK(root_cause(Reports{lost, thrown}) == 1);
  const FailureReport circle{2, 0, ErrorKind::kPeerLost, "rank 0 has left"};
  CHECK(root_cause(Reports{lost, circle}) == 0);
  CHECK_FALSE(is_consequence(thrown));
  CHECK(is_consequence(failed));
}

TEST_CASE("Peers see a rank's own failure as that rank's, and a group's failure as it is") {
  const auto own = as_seen_by_peers({2, -1, ErrorKind::kInvalidArgument, "no such file"});
  CHECK(own.kind() == ErrorKind::kPeerLost);
  CHECK(own.rank() == 2);
  CHECK(std::string(own.what()) == "rank 2 failed: no such file");
  const auto group = as_seen_by_peers({2, -1, ErrorKind::kMismatch, "shapes differ"});
  CHECK(group.kind() == ErrorKind::kMismatch);
  CHECK(std::string(group.what()) == "shapes differ");
  CHECK(as_seen_by_peers({2, 0, ErrorKind::kTimeout, "late"}).rank() == 0);
}

TEST_CASE("Of equal errors the lowest rank prints, and the others wait for it") {
  VerdictBoard board;
  board.add({12, 1}, 2, "same");
  board.add({10, 1}, 0, "same");
  board.add({11, 1}, 1, "other");
  CHECK(board.decide(false, false).empty());
  auto answers = board.decide(true, false);
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].request.connection == 10);
  CHECK(answers[0].prints);
  CHECK(answers[1].request.connection == 11);
  CHECK(answers[1].prints);
  CHECK(board.is_waiting());
  board.drop(10);
  CHECK(board.decide(true, false).empty());
  board.drop(11);
  answers = board.decide(true, false);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].request.connection == 12);
  CHECK_FALSE(answers[0].prints);
  CHECK_FALSE(board.is_waiting());
  // One that comes late, with a text that is out already, keeps quiet.
  board.add({13, 1}, 3, "same");
  answers = board.decide(true, false);
  REQUIRE(answers.size() == 1);
  CHECK_FALSE(answers[0].prints);
  CHECK(board.has_reported(3));
  CHECK_FALSE(board.has_reported(4));
}

TEST_CASE("Quiet ranks go when the printing rank takes too long") {
  VerdictBoard board;
  board.add({1, 1}, 0, "same");
  board.add({2, 1}, 1, "same");
  CHECK(board.decide(true, false).size() == 1);
  const auto answers = board.decide(true, true);
  REQUIRE(answers.size() == 1);
  CHECK_FALSE(answers[0].prints);
}

TEST_CASE("The latch keeps the first failure and tells each subscriber once") {
  FailureLatch latch;
  int calls = 0;
  const auto kept = latch.subscribe([&] { ++calls; });
  latch.subscribe([&] { calls += 100; });  // Its handle is gone at once.
  CHECK_FALSE(latch.get().has_value());
  CHECK(latch.set(Error(ErrorKind::kPeerLost, "first", 1)));
  CHECK_FALSE(latch.set(Error(ErrorKind::kPeerLost, "second", 2)));
  CHECK(calls == 1);
  CHECK(std::string(latch.get()->what()) == "first");
  const auto late = latch.subscribe([&] { calls += 10; });
  CHECK(calls == 11);
}

TEST_CASE("A subscription may drop itself, and its end waits for a running call") {
  FailureLatch latch;
  std::shared_ptr<void> handle;
  handle = latch.subscribe([&] { handle.reset(); });
  latch.set(Error(ErrorKind::kFailed, "x"));
  CHECK(handle == nullptr);

  for (int round = 0; round < 50; ++round) {
    FailureLatch other;
    std::atomic<bool> is_alive{true};
    std::atomic<bool> was_late{false};
    auto subscription = other.subscribe([&] {
      std::this_thread::yield();
      if (!is_alive) was_late = true;
    });
    std::thread setter([&] { other.set(Error(ErrorKind::kFailed, "x")); });
    subscription.reset();
    is_alive = false;
    setter.join();
    CHECK_FALSE(was_late);
  }
}
