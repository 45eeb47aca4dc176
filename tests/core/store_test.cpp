// What every store does: in memory, behind a prefix, and over the control channel.
#include "control/store_table.h"
#include "convoy/control/frame.h"
#include "convoy/control/thread_sessions.h"
#include "core/support.h"
#include "support/catch.h"

using namespace convoy;
using namespace convoy::test;

namespace {

Deadline soon() { return Deadline::after(5s); }

// Two views of one store: what one does the other sees.
struct Views {
  std::shared_ptr<Store> one, two;
  std::vector<std::shared_ptr<Session>> sessions;
  std::unique_ptr<ServerThread> server;
};

Views make_views(const std::string& kind) {
  Views views;
  if (kind == "memory") {
    views.one = views.two = make_memory_store();
  } else if (kind == "prefix") {
    const auto store = make_memory_store();
    views.one = make_prefix_store(store, "p");
    views.two = make_prefix_store(store, "p");
  } else if (kind == "threads") {
    views.sessions = make_thread_sessions(2);
  } else {
    views.server = std::make_unique<ServerThread>(2);
    for (int rank = 0; rank < 2; ++rank) views.sessions.push_back(views.server->join(rank));
  }
  if (!views.sessions.empty()) {
    views.one = views.sessions[0]->store();
    views.two = views.sessions[1]->store();
  }
  return views;
}

const std::vector<std::string> kKinds{"memory", "prefix", "threads", "control"};

template <typename Body>
void for_every_store(Body body) {
  for (const auto& kind : kKinds) {
    SECTION(kind) {
      auto views = make_views(kind);
      body(*views.one, *views.two);
    }
  }
}

}  // namespace

TEST_CASE("Store: what one sets the other gets") {
  for_every_store([](Store& one, Store& two) {
    CHECK_FALSE(two.try_get("k").has_value());
    one.set("k", "v1");
    CHECK(two.get("k", soon()) == "v1");
    two.set("k", "v2");
    CHECK(one.try_get("k") == "v2");
    one.set("empty", "");
    CHECK(two.get("empty", soon()).empty());
    const std::string binary("\0\xff\n", 3);
    one.set(binary, binary);
    CHECK(two.get(binary, soon()) == binary);
    CHECK(two.remove("k"));
    CHECK_FALSE(one.remove("k"));
    CHECK_FALSE(one.try_get("k").has_value());
  });
}

TEST_CASE("Store: get and wait return when the keys appear") {
  for_every_store([](Store& one, Store& two) {
    std::thread setter([&] {
      std::this_thread::sleep_for(20ms);
      two.set("a", "1");
      std::this_thread::sleep_for(20ms);
      two.add("b", 5);
      two.compare_set("c", "", "3");
    });
    CHECK(one.get("a", soon()) == "1");
    one.wait(std::vector<std::string>{"a", "b", "c", "a"}, soon());
    CHECK(one.get("b", soon()) == "5");
    one.wait({}, soon());
    setter.join();
  });
}

TEST_CASE("Store: a wait that ends names all missing keys, as the caller calls them") {
  for_every_store([](Store& one, Store& two) {
    two.set("there", "");
    const auto began = Deadline::Clock::now();
    const auto error = error_of([&] {
      one.wait(std::vector<std::string>{"x", "there", "y"}, Deadline::after(100ms));
    });
    CHECK(Deadline::Clock::now() - began < 2s);
    CHECK(error.kind() == ErrorKind::kTimeout);
    INFO(error.what());
    CHECK((contains(error.what(), "no keys 'x' and 'y' after") ||
           contains(error.what(), "no keys 'p/x' and 'p/y' after")));
    CHECK(error_of([&] { one.get("z", Deadline::after(0s)); }).kind() == ErrorKind::kTimeout);
    // What came too late is there for the next one.
    two.set("x", "late");
    CHECK(one.get("x", soon()) == "late");
  });
}

TEST_CASE("Store: add counts from nothing, and refuses what is no number") {
  for_every_store([](Store& one, Store& two) {
    CHECK(one.add("n", 5) == 5);
    CHECK(two.add("n", -7) == -2);
    CHECK(one.get("n", soon()) == "-2");
    CHECK(one.add("zero", 0) == 0);
    one.set("text", "abc");
    const auto error = error_of([&] { two.add("text", 1); });
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
    CHECK(contains(error.what(), "no whole number"));
    CHECK(one.get("text", soon()) == "abc");
    one.set("max", "9223372036854775807");
    CHECK(error_of([&] { one.add("max", 1); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(two.get("max", soon()) == "9223372036854775807");
  });
}

TEST_CASE("Store: compare_set changes a value only from the expected one") {
  for_every_store([](Store& one, Store& two) {
    CHECK(one.compare_set("k", "old", "new").empty());
    CHECK_FALSE(two.try_get("k").has_value());
    CHECK(one.compare_set("k", "", "first") == "first");
    CHECK(two.compare_set("k", "", "second") == "first");
    CHECK(two.compare_set("k", "other", "second") == "first");
    CHECK(two.compare_set("k", "first", "second") == "second");
    CHECK(one.get("k", soon()) == "second");
  });
}

TEST_CASE("Store: limits on keys and values are errors that change nothing") {
  for_every_store([](Store& one, Store& two) {
    const std::string long_key(kMaxKeyBytes + 1, 'k');
    CHECK(error_of([&] { one.set(long_key, ""); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.get(long_key, soon()); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.try_get(long_key); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.add(long_key, 1); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.remove(long_key); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.wait(std::vector<std::string>{long_key}, soon()); }).kind() ==
          ErrorKind::kInvalidArgument);
    one.set(std::string(kMaxKeyBytes - 100, 'k'), "long enough");
    const std::string too_much(kMaxFrameBytes, 'v');
    CHECK(error_of([&] { one.set("v", too_much); }).kind() == ErrorKind::kInvalidArgument);
    CHECK(error_of([&] { one.compare_set("v", "", too_much); }).kind() ==
          ErrorKind::kInvalidArgument);
    CHECK_FALSE(two.try_get("v").has_value());
    const std::string most(max_value_bytes("v") - 100, 'v');
    one.set("v", most);
    CHECK(two.get("v", soon()) == most);
  });
}

TEST_CASE("Store: concurrent adds and compare_sets lose nothing") {
  for_every_store([](Store& one, Store& two) {
    constexpr int kRounds = 200;
    const auto work = [&](Store& store, std::string_view name) {
      for (int i = 0; i < kRounds; ++i) {
        store.add("sum", 1);
        // An increment under a lock that is made of compare_set and remove.
        const auto me = concat(name, i);
        while (store.compare_set("lock", "", me) != me) std::this_thread::yield();
        const auto value = store.try_get("counter").value_or("0");
        store.set("counter", std::to_string(std::stoi(value) + 1));
        store.remove("lock");
      }
    };
    std::thread other([&] { work(two, "two "); });
    work(one, "one ");
    other.join();
    CHECK(one.add("sum", 0) == 2 * kRounds);
    CHECK(one.get("counter", soon()) == std::to_string(2 * kRounds));
  });
}

TEST_CASE("Store: prefixes keep users apart") {
  const auto store = make_memory_store();
  const auto a = make_prefix_store(store, "a");
  const auto b = make_prefix_store(store, "b");
  a->set("k", "1");
  CHECK_FALSE(b->try_get("k").has_value());
  CHECK(store->get("a/k", soon()) == "1");
}

TEST_CASE("Store: a request for more keys than the limit is refused") {
  auto views = make_views("control");
  const std::vector<std::string> keys(kMaxKeys + 1, "k");
  CHECK(error_of([&] { views.one->wait(keys, soon()); }).kind() == ErrorKind::kInvalidArgument);
  views.two->set("k", "");
  views.one->wait(std::vector<std::string>(kMaxKeys, "k"), soon());
}
