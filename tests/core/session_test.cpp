// Sessions: membership, the first failure, the shutdown barrier; for threads and over the channel.
#include "convoy/control/thread_sessions.h"
#include "convoy/rendezvous/job.h"
#include "core/support.h"
#include "support/catch.h"

#include <cstdlib>

using namespace convoy;
using namespace convoy::test;

namespace {

Deadline soon() { return Deadline::after(5s); }

struct World {
  std::unique_ptr<ServerThread> server;
  std::vector<std::shared_ptr<Session>> ranks;
};

World make_world(const std::string& kind, int size) {
  World world;
  if (kind == "threads") {
    world.ranks = make_thread_sessions(size);
    return world;
  }
  world.server = std::make_unique<ServerThread>(size);
  for (int rank = 0; rank < size; ++rank) world.ranks.push_back(world.server->join(rank));
  return world;
}

template <typename Body>
void for_both_kinds(int size, Body body) {
  for (const std::string kind : {"threads", "control"}) {
    SECTION(kind) {
      auto world = make_world(kind, size);
      body(world);
    }
  }
}

}  // namespace

TEST_CASE("Row 8: a rank that never comes is named") {
  ServerThread server(4);
  const std::vector<std::shared_ptr<Session>> ranks{server.join(0), server.join(1), server.join(3)};
  CHECK(server.ask<std::vector<int>>([](auto& s) { return s.missing_ranks(); }) ==
        std::vector<int>{2});
  const auto began = Deadline::Clock::now();
  const auto error =
      error_of([&] { ranks[0]->store()->get("address of 2", Deadline::after(300ms)); });
  CHECK(Deadline::Clock::now() - began < 1300ms);
  CHECK(error.kind() == ErrorKind::kTimeout);
  CHECK(error.rank() == 2);
  // A rank that was held up right behind making its deadline has less than 300 ms of it left.
  CHECK(contains(error.what(), "store: no key 'address of 2' after "));
  CHECK(contains(error.what(), " ms; rank 2 has not joined the job"));
}

TEST_CASE("The first failure wins and reaches all ranks with one text") {
  for_both_kinds(3, [](World& world) {
    std::atomic<int> calls{0};
    std::vector<std::shared_ptr<void>> handles;
    handles.reserve(world.ranks.size() + 1);
    for (const auto& rank : world.ranks) handles.push_back(rank->on_failure([&] { ++calls; }));
    for (const auto& rank : world.ranks) CHECK_FALSE(rank->failure().has_value());
    world.ranks[1]->report_failure(Error(ErrorKind::kInvalidArgument, "no such file"));
    CHECK(eventually([&] { return calls == 3; }));
    world.ranks[2]->report_failure(Error(ErrorKind::kPeerLost, "rank 1 is gone", 1));
    for (const auto& rank : world.ranks) {
      REQUIRE(rank->failure().has_value());
      CHECK(rank->failure()->kind() == ErrorKind::kPeerLost);
      CHECK(rank->failure()->rank() == 1);
      CHECK(std::string(rank->failure()->what()) == "rank 1 failed: no such file");
    }
    handles.push_back(world.ranks[0]->on_failure([&] { calls += 10; }));
    CHECK(calls == 13);
  });
}

TEST_CASE("A failure ends waits in the store, and what is there can still be had") {
  for_both_kinds(2, [](World& world) {
    world.ranks[0]->store()->set("there", "value");
    std::optional<Error> caught;
    std::thread waiter([&] {
      caught = error_of([&] { world.ranks[0]->store()->get("never", Deadline::after(60s)); });
    });
    std::this_thread::sleep_for(30ms);
    const auto began = Deadline::Clock::now();
    world.ranks[1]->report_failure(Error(ErrorKind::kMemory, "no memory"));
    waiter.join();
    CHECK(Deadline::Clock::now() - began < 500ms);
    CHECK(caught->kind() == ErrorKind::kPeerLost);
    CHECK(caught->rank() == 1);
    CHECK(std::string(caught->what()) ==
          "rank 1 failed: no memory (while waiting for key 'never')");
    CHECK(world.ranks[0]->store()->get("there", soon()) == "value");
    CHECK(error_of([&] { world.ranks[0]->store()->get("never", soon()); }).rank() == 1);
    world.ranks[0]->store()->set("still", "works");
    CHECK(world.ranks[1]->store()->try_get("still") == "works");
  });
}

TEST_CASE("A goodbye is seen, and is no failure") {
  for_both_kinds(3, [](World& world) {
    CHECK(world.ranks[0]->left_ranks().empty());
    world.ranks[2].reset();
    CHECK(eventually([&] { return world.ranks[0]->left_ranks() == std::vector<int>{2}; }));
    CHECK(eventually([&] { return world.ranks[1]->left_ranks() == std::vector<int>{2}; }));
    CHECK_FALSE(world.ranks[0]->failure().has_value());
    if (world.server) {
      CHECK(eventually([&] { return world.server->has_event("finished 2"); }));
      const auto error =
          error_of([&] { world.ranks[0]->store()->get("k", Deadline::after(50ms)); });
      CHECK(contains(error.what(), "; rank 2 has left it"));
    }
  });
}

TEST_CASE("The shutdown barrier waits for the slow and does not wait for who has left") {
  for_both_kinds(4, [](World& world) {
    world.ranks[3].reset();
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    threads.reserve(2);
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        world.ranks[static_cast<std::size_t>(rank)]->finish(soon());
        ++done;
      });
    }
    std::this_thread::sleep_for(100ms);
    CHECK(done == 0);
    world.ranks[2]->finish(soon());
    for (auto& thread : threads) thread.join();
    CHECK(done == 2);
  });
}

TEST_CASE("The shutdown barrier names who is late, and ends with a failure") {
  for_both_kinds(3, [](World& world) {
    const auto late = error_of([&] { world.ranks[0]->finish(Deadline::after(50ms)); });
    CHECK(late.kind() == ErrorKind::kTimeout);
    CHECK(contains(late.what(), "shutdown: ranks 1 and 2 are not done after"));
    std::thread reporter([&] {
      std::this_thread::sleep_for(30ms);
      world.ranks[2]->report_failure(Error(ErrorKind::kMisuse, "oops"));
    });
    const auto failed = error_of([&] { world.ranks[1]->finish(soon()); });
    reporter.join();
    CHECK(contains(failed.what(), "rank 2 failed: oops (while waiting for rank 2 to finish)"));
  });
}

TEST_CASE("Row 15: the launcher's death fails every session at once") {
  auto world = make_world("control", 2);
  const auto store = world.ranks[0]->store();
  std::optional<Error> caught;
  std::thread waiter(
      [&] { caught = error_of([&] { store->get("never", Deadline::after(60s)); }); });
  std::this_thread::sleep_for(30ms);
  const auto began = Deadline::Clock::now();
  world.server->stop();
  waiter.join();
  CHECK(eventually([&] { return world.ranks[1]->failure().has_value(); }));
  CHECK(Deadline::Clock::now() - began < 500ms);
  CHECK(caught->kind() == ErrorKind::kPeerLost);
  CHECK(contains(world.ranks[1]->failure()->what(), "the launcher is gone"));
  CHECK(error_of([&] { store->set("k", "v"); }).kind() == ErrorKind::kPeerLost);
  world.ranks[0]->report_failure(Error(ErrorKind::kFailed, "nobody hears this"));
  world.ranks.clear();  // Ends without waiting for an answer.
  CHECK(Deadline::Clock::now() - began < 3s);
  CHECK(error_of([&] { store->try_get("k"); }).kind() == ErrorKind::kPeerLost);
}

TEST_CASE("A launcher that does not answer is a timeout, not a hang") {
  ServerThread server(1);
  auto options = server.client(0);
  options.answer_timeout = 200ms;
  auto session = connect_session(options);
  server.run([&](ControlServer&) {  // The server's thread is held up meanwhile.
    const auto began = Deadline::Clock::now();
    const auto error = error_of([&] { session->store()->set("k", "v"); });
    CHECK(error.kind() == ErrorKind::kTimeout);
    CHECK(contains(error.what(), "the launcher does not answer"));
    const auto late = error_of([&] { session->store()->get("k", Deadline::after(100ms)); });
    CHECK(late.kind() == ErrorKind::kTimeout);
    CHECK(Deadline::Clock::now() - began < 5s);
  });
  session->store()->set("k", "v2");  // It is back.
  CHECK(session->store()->get("k", soon()) == "v2");
}

TEST_CASE("A failure callback may use the session, also when sending is what failed") {
  auto world = make_world("control", 1);
  auto* session = world.ranks[0].get();
  std::atomic<int> calls{0};
  const auto handle = session->on_failure([&] {
    session->report_failure(Error(ErrorKind::kFailed, "from the callback"));
    session->mark_operation("callback", 1, "");
    if (session->failure()) ++calls;
  });
  world.server->stop();
  // Whichever notices first, the reading thread or one of these.
  for (int i = 0; i < 20; ++i) {
    session->report_failure(Error(ErrorKind::kFailed, std::string(60'000, 'x')));
  }
  CHECK(eventually([&] { return calls == 1; }));
}

TEST_CASE("A store that outlives its session says so") {
  auto world = make_world("control", 1);
  const auto store = world.ranks[0]->store();
  world.ranks.clear();
  const auto error = error_of([&] { store->set("k", "v"); });
  CHECK(error.kind() == ErrorKind::kMisuse);
  CHECK(contains(error.what(), "session with the job has ended"));
}

TEST_CASE("A session that ends by an exception says so") {
  auto world = make_world("control", 2);
  try {
    const auto session = std::move(world.ranks[1]);
    throw std::runtime_error("unwinds");
  } catch (const std::runtime_error&) {
  }
  CHECK(eventually([&] { return world.server->has_event("unwinding 1"); }));
  CHECK(eventually([&] { return world.ranks[0]->left_ranks() == std::vector<int>{1}; }));
}

TEST_CASE("A rank may leave and join again, until its process has ended") {
  auto world = make_world("control", 2);
  world.ranks[0]->store()->set("k", "first life");
  world.ranks[1].reset();
  CHECK(eventually([&] { return world.ranks[0]->left_ranks() == std::vector<int>{1}; }));
  world.ranks[1] = world.server->join(1);
  CHECK(eventually([&] { return world.ranks[0]->left_ranks().empty(); }));
  CHECK(world.ranks[1]->store()->get("k", soon()) == "first life");
  world.ranks[1].reset();
  world.server->run([](ControlServer& server) { server.mark_exited(1); });
  CHECK(contains(error_of([&] { world.server->join(1); }).what(), "whose process has ended"));
  CHECK(eventually([&] { return world.ranks[0]->left_ranks() == std::vector<int>{1}; }));
}

TEST_CASE("A rank that joins late learns of the failure and of who has left") {
  ServerThread server(3);
  auto first = server.join(0);
  first.reset();
  server.run([](ControlServer& s) { s.abort(Error(ErrorKind::kPeerLost, "rank 0 died", 0)); });
  const auto late = server.join(2);
  CHECK(eventually([&] { return late->failure().has_value(); }));
  CHECK(std::string(late->failure()->what()) == "rank 0 died");
  CHECK(eventually([&] { return late->left_ranks() == std::vector<int>{0}; }));
}

TEST_CASE("The launcher's abort reaches a waiting rank within half a second") {
  auto world = make_world("control", 2);
  std::optional<Error> caught;
  std::thread waiter([&] {
    caught = error_of([&] { world.ranks[0]->store()->get("never", Deadline::after(60s)); });
  });
  CHECK(eventually([&] {
    return world.server->ask<std::vector<int>>([](auto& s) { return s.waiting_ranks(); }) ==
           std::vector<int>{0};
  }));
  const auto began = Deadline::Clock::now();
  world.server->run([](ControlServer& s) {
    s.mark_exited(1);
    s.abort(Error(ErrorKind::kPeerLost, "rank 1 was killed by SIGKILL", 1));
    s.abort(Error(ErrorKind::kPeerLost, "something later", 0));
  });
  waiter.join();
  CHECK(Deadline::Clock::now() - began < 500ms);
  CHECK(std::string(caught->what()) ==
        "rank 1 was killed by SIGKILL (while waiting for key 'never')");
}

TEST_CASE("Generations do not see each other's keys") {
  // One server per life of a run; the prefix is what keeps lives apart wherever keys outlive them.
  ControlServerOptions options;
  options.generation = 5;
  ServerThread server(1, options);
  const auto session = server.join(0);
  session->store()->set("k", "v");
  auto stale = server.client(0);
  stale.generation = 4;
  CHECK(contains(error_of([&] { connect_session(stale); }).what(),
                 "serves generation 5 of run 'test-run', the rank belongs to generation 4"));
}

TEST_CASE("Marks of a session are read in the launcher's page") {
  auto world = make_world("control", 2);
  world.ranks[1]->mark_operation("reduce_scatter", 9, "blocks.3");
  const auto read = [&](int rank) {
    return world.server->ask<RankMark>([rank](auto& s) { return s.page().read(rank); });
  };
  CHECK(describe_operation(read(1)) == "reduce_scatter #9 'blocks.3'");
  CHECK(read(0).phase == RankPhase::kRunning);
  CHECK(describe_operation(read(0)) == "none");
  world.ranks[1].reset();
  CHECK(read(1).phase == RankPhase::kLeft);
}

TEST_CASE("A job alone has a store, and no failure of its own making") {
  const auto job = Job::alone();
  CHECK(job.rank() == 0);
  CHECK(job.world_size() == 1);
  CHECK(job.run_id() != Job::alone().run_id());
  job.store()->set("k", "v");
  CHECK(job.store()->get("k", soon()) == "v");
  job.session()->finish(soon());
  CHECK_FALSE(job.session()->failure().has_value());
  CHECK(job.session()->left_ranks().empty());
}
