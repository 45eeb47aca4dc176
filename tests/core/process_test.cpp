// Ranks as real processes: ends of every kind, signals, and what is printed.
#include "core/support.h"
#include "support/catch.h"

#include <csignal>

using namespace convoy;
using namespace convoy::test;

namespace {

std::vector<Child> start_world(const ServerThread& server, int size,
                               const std::vector<std::string>& arguments) {
  std::vector<Child> children;
  children.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(Child::start(arguments, launch_variables(server, rank)));
  }
  return children;
}

std::vector<int> waiting(ServerThread& server) {
  return server.ask<std::vector<int>>([](auto& s) { return s.waiting_ranks(); });
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("A process without launch variables is a world of one") {
  auto child = Child::start({"who"}, {});
  CHECK(child.wait() == 0);
  CHECK(contains(child.output(), "rank 0 of 1, local 0 of 1, run alone-"));
}

TEST_CASE("A process takes its place from the environment") {
  ControlServerOptions options;
  options.generation = 2;
  ServerThread server(3, options);
  auto child = Child::start({"who"}, launch_variables(server, 1));
  CHECK(child.wait() == 0);
  CHECK(child.output() == "rank 1 of 3, local 1 of 3, run test-run, generation 2\n");
  CHECK(eventually([&] { return server.has_event("hello 1"); }));
  CHECK(eventually([&] { return server.has_event("finished 1"); }));
}

TEST_CASE("C058: RANK without a launcher is one line that lists what is missing, exit 2") {
  auto child = Child::start({"who"}, {"RANK=0"});
  CHECK(child.wait() == 2);
  CHECK(
      child.output() ==
      "error: the environment describes a job only in part: WORLD_SIZE, LOCAL_RANK, "
      "LOCAL_WORLD_SIZE, CONVOY_CONTROL, CONVOY_RUN_ID, CONVOY_GENERATION are missing beside RANK; "
      "start the ranks with convoyrun, or unset it to run as one rank\n");
}

TEST_CASE("C058: the launcher's values win over stale ones") {
  ServerThread server(1);
  auto variables = launch_variables(server, 0);
  variables.emplace_back("MASTER_ADDR=bad");  // Of an outer job; nobody asks for it.
  variables.emplace_back("MASTER_PORT=1");
  auto child = Child::start({"who"}, variables);
  CHECK(child.wait() == 0);
  CHECK(contains(child.output(), "rank 0 of 1"));
}

TEST_CASE("A control channel that nobody serves is one line, exit 1") {
  auto variables = [] {
    ServerThread gone(2);
    return launch_variables(gone, 0);
  }();
  auto child = Child::start({"who"}, variables);
  CHECK(child.wait() == 1);
  CHECK(contains(child.output(), "error: nobody listens on unix:@convoy-"));
}

TEST_CASE("Row 9: two processes that claim one rank are both named, and none hangs") {
  ServerThread server(2);
  auto first = Child::start({"wait"}, launch_variables(server, 1));
  CHECK(eventually([&] { return server.has_event("hello 1"); }));
  const auto began = Deadline::Clock::now();
  auto second = Child::start({"wait"}, launch_variables(server, 1));
  CHECK(second.wait() == 1);
  CHECK(Deadline::Clock::now() - began < 3s);  // Its report waits half a second for others'.
  CHECK(contains(second.output(), concat("two processes claim to be rank 1: ", first.pid(),
                                         ", which came first, and ", second.pid())));
  CHECK(eventually([&] { return server.has_event(concat("refused: process ", second.pid())); }));
  // The one that came first hears of it too, as of the failure of its number.
  CHECK(first.wait() == 1);
  CHECK(contains(first.output(), "two processes claim to be rank 1"));
}

TEST_CASE("Row 1: after a SIGKILL the launcher knows the last operation, the others the cause") {
  ServerThread server(2);
  auto victim = Child::start({"mark-and-wait"}, launch_variables(server, 1));
  auto survivor = Child::start({"wait"}, launch_variables(server, 0));
  CHECK(eventually([&] { return waiting(server) == std::vector<int>{0, 1}; }));
  const auto began = Deadline::Clock::now();
  victim.kill(SIGKILL);
  CHECK(victim.wait() == 137);
  const auto mark = server.ask<RankMark>([](auto& s) { return s.page().read(1); });
  CHECK(mark.pid == victim.pid());
  CHECK(describe_operation(mark) == "all_reduce #51 'layer3'");
  CHECK(eventually([&] { return server.has_event("vanished 1"); }));
  server.run([&](ControlServer& s) {
    s.mark_exited(1);
    s.abort(Error(ErrorKind::kPeerLost, "rank 1 was killed by SIGKILL", 1));
  });
  CHECK(survivor.wait() == 1);
  CHECK(Deadline::Clock::now() - began < 3s);
  CHECK(survivor.output() ==
        "error: rank 1 was killed by SIGKILL (while waiting for key 'never')\n");
}

TEST_CASE("Row 2: an exception is the root cause, its consequences are told apart") {
  ServerThread server(3);
  auto waiters = std::vector<Child>();
  for (const int rank : {0, 2}) {
    waiters.push_back(Child::start({"wait"}, launch_variables(server, rank)));
  }
  CHECK(eventually([&] { return waiting(server) == std::vector<int>{0, 2}; }));
  const auto began = Deadline::Clock::now();
  auto thrower = Child::start({"throw"}, launch_variables(server, 1));
  CHECK(thrower.wait() == 1);
  CHECK(thrower.output() == "error: the model exploded\n");
  for (auto& waiter : waiters) CHECK(waiter.wait() == 1);
  CHECK(Deadline::Clock::now() - began < 5s);
  // Both say what the failure of rank 1 did to them; the text is the same, so one of them prints
  // it.
  CHECK(waiters[0].output() ==
        "error: rank 1 failed: the model exploded (while waiting for key 'never')\n");
  CHECK(waiters[1].output().empty());
  const auto reports = server.ask<std::vector<FailureReport>>([](auto& s) { return s.reports(); });
  REQUIRE(reports.size() == 3);
  const auto& cause = reports[static_cast<std::size_t>(root_cause(reports))];
  CHECK(cause.reporter == 1);
  CHECK(cause.text == "the model exploded");
}

TEST_CASE("The same bad input on all ranks is printed by the lowest rank only, exit 2") {
  for (int round = 0; round < 5; ++round) {
    ServerThread server(4);
    auto children = start_world(server, 4, {"bad-input"});
    std::string all;
    for (auto& child : children) {
      CHECK(child.wait() == 2);
      all += child.output();
    }
    CHECK(all == "error: no such file: /nowhere\n");
    CHECK(children[0].output() == all);
  }
}

TEST_CASE("A wrong value in everybody's environment is printed by the lowest rank only, exit 2") {
  ServerThread server(3);
  std::vector<Child> children;
  for (int rank = 0; rank < 3; ++rank) {
    auto variables = launch_variables(server, rank);
    variables.emplace_back("CONVOY_LOG=loud");
    children.push_back(Child::start({"who"}, variables));
  }
  std::string all;
  for (auto& child : children) {
    CHECK(child.wait() == 2);
    all += child.output();
  }
  CHECK(all == "error: CONVOY_LOG is 'loud', it takes error, warn, info or debug\n");
  CHECK(children[0].output() == all);
}

TEST_CASE("Exceptions of every type end in one line and exit 1") {
  auto odd = Child::start({"throw-odd"}, {});
  CHECK(odd.wait() == 1);
  CHECK(odd.output() == "error: an exception of an unknown type\n");
  auto memory = Child::start({"bad-alloc"}, {});
  CHECK(memory.wait() == 1);
  CHECK(memory.output() == "error: out of memory\n");
}

TEST_CASE("Row 18: a clean end without explicit shutdown, one rank slower, is clean everywhere") {
  ServerThread server(3);
  auto children = start_world(server, 3, {"end-after", "0", "1500", "10"});
  for (auto& child : children) {
    CHECK(child.wait() == 0);
    CHECK(child.output().empty());
  }
  for (const char* event : {"finished 0", "finished 1", "finished 2"}) {
    CHECK(eventually([&] { return server.has_event(event); }));
  }
}

TEST_CASE("C056: ranks that end in any order all end with 0 and no error text") {
  for (int round = 0; round < 15; ++round) {
    ServerThread server(4);
    const auto delay = [&](int i) { return std::to_string((round * 37 + i * 53) % 120); };
    auto children = start_world(server, 4, {"end-after", delay(0), delay(1), delay(2), delay(3)});
    for (auto& child : children) {
      CHECK(child.wait() == 0);
      CHECK(child.output().empty());
    }
  }
}

TEST_CASE("C052: a rank that ends early with 0 is seen by the others to have left") {
  for (const auto& arguments : {std::vector<std::string>{"who"}, {"exit", "0"}}) {
    ServerThread server(2);
    const auto session = server.join(0);
    auto early = Child::start(arguments, launch_variables(server, 1));
    CHECK(early.wait() == 0);
    CHECK(eventually([&] { return session->left_ranks() == std::vector<int>{1}; }));
    CHECK_FALSE(session->failure().has_value());
    CHECK(eventually([&] {
      return server.has_event(arguments.front() == "who" ? "finished 1" : "vanished 1");
    }));
  }
}

TEST_CASE("Row 15: the launcher's end ends every rank with its cause") {
  ServerThread server(3);
  auto children = start_world(server, 3, {"wait"});
  CHECK(eventually([&] { return waiting(server).size() == 3; }));
  const auto began = Deadline::Clock::now();
  server.stop();
  for (auto& child : children) {
    CHECK(child.wait() == 1);
    CHECK(contains(child.output(), "error: the launcher is gone"));
    CHECK(count_of(child.output(), "\n") == 1);
  }
  CHECK(Deadline::Clock::now() - began < 2s);
}

TEST_CASE("A forked child does not end its parent's session") {
  ServerThread server(2);
  const auto session = server.join(0);
  auto parent = Child::start({"fork"}, launch_variables(server, 1));
  CHECK(session->store()->get("parent", Deadline::after(10s)) == "still here");
  CHECK(parent.wait() == 0);
  CHECK(eventually([&] { return server.has_event("finished 1"); }));
  CHECK_FALSE(server.has_event("vanished"));
}
