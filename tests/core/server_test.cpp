// The control server against clients that are wrong, rude, or too many.
#include "control/messages.h"
#include "convoy/control/channel.h"
#include "convoy/control/frame.h"
#include "core/support.h"
#include "support/catch.h"

#include <algorithm>
#include <fstream>
#include <random>

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;

namespace {

Deadline soon() { return Deadline::after(5s); }

Channel connect_raw(const ServerThread& server) {
  return Channel::connect(ControlAddress::parse(server.address()), soon());
}

Hello hello_of(const ControlClientOptions& options) {
  return {kProtocolVersion,   ClientRole::kRank, options.rank,
          options.world_size, options.run_id,    options.generation};
}

// True once the server has closed the connection; what it still sends is read away.
bool is_closed(Channel& channel) {
  char bytes[4096];
  try {
    while (channel.receive_some(bytes, sizeof(bytes), soon()) > 0) {
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// A store that works shows that the server is well.
void check_alive(Store& store, int round) {
  const auto key = concat("alive", round);
  store.set(key, "yes");
  REQUIRE(store.get(key, soon()) == "yes");
}

}  // namespace

TEST_CASE("A hello that does not fit is refused, and both sides are named") {
  ServerThread server(4);
  const auto text_of = [&](auto change) {
    auto options = server.client(1);
    change(options);
    const auto error = error_of([&] { connect_session(options); });
    CHECK(error.kind() == ErrorKind::kMismatch);
    return std::string(error.what());
  };
  CHECK(contains(text_of([](auto& o) { o.world_size = 5; }),
                 "the launcher started a world of 4, rank 1 expects a world of 5"));
  CHECK(contains(text_of([](auto& o) { o.run_id = "other"; }),
                 "serves run 'test-run', the rank belongs to run 'other'"));
  CHECK(contains(text_of([](auto& o) { o.generation = 2; }), "serves generation 0"));
  CHECK(contains(text_of([](auto& o) { o.rank = 4; }), "rank 4 is outside of the world of 4"));
  CHECK(contains(text_of([](auto& o) { o.rank = -1; }), "rank -1 is outside"));

  auto hello = hello_of(server.client(0));
  hello.version = 7;
  auto channel = connect_raw(server);
  channel.send_frame(FrameType::kHello, 0, hello.encode(), soon());
  const auto frame = channel.receive_frame(soon());
  REQUIRE(frame.type == FrameType::kRefused);
  CHECK(contains(decode_error(frame.payload).what(),
                 "version 1 of the control protocol, the rank version 7"));
  CHECK(is_closed(channel));
  CHECK(eventually([&] { return server.has_event("refused: process"); }));
  CHECK(server.ask<std::vector<int>>([](auto& s) { return s.missing_ranks(); }).size() == 4);
}

TEST_CASE("Two claims of one rank name both, and the first one keeps it") {
  ServerThread server(2);
  const auto first = server.join(1);
  const auto error = error_of([&] { server.join(1); });
  CHECK(error.kind() == ErrorKind::kMismatch);
  // Here both claims come from this process; that of two processes is in process_test.cpp.
  CHECK(contains(error.what(), concat("rank 1 (process ", ::getpid(), ") has a session already")));
  check_alive(*first->store(), 0);
}

TEST_CASE("Another user is refused without an answer") {
  ControlServerOptions options;
  options.user = ::geteuid() + 1;
  ServerThread server(1, options);
  auto channel = connect_raw(server);
  CHECK(is_closed(channel));
  CHECK(eventually([&] { return server.has_event("refused: process"); }));
  CHECK(contains(server.events().front(), concat("of user ", ::geteuid())));
}

TEST_CASE("Junk, half frames and huge lengths close their connection and nothing else") {
  ControlServerOptions options;
  options.hello_timeout = 300ms;
  ServerThread server(2, options);
  const auto rank0 = server.join(0);
  const auto store = rank0->store();
  std::mt19937 random(815);
  for (int round = 0; round < 200; ++round) {
    auto channel = connect_raw(server);
    std::string junk(1 + random() % 5000, '\0');
    for (auto& byte : junk) byte = static_cast<char>(random());
    if (round % 4 == 1) {
      // A header that claims almost all a frame may have, before the hello.
      junk = encode_frame(FrameType::kHello, 0, std::string(kMaxHelloBytes + 1, 'x')).substr(0, 20);
    }
    if (round % 4 == 2) junk = encode_frame(FrameType::kSet, 1, junk.substr(0, 100));
    if (round % 4 == 3) junk = encode_frame(FrameType::kHello, 0, junk.substr(0, 100));
    try {
      channel.send(junk, soon());
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kPeerLost);  // Closed before all of it was sent.
    }
    CHECK(is_closed(channel));
    if (round % 20 == 0) check_alive(*store, round);
  }
  auto half = connect_raw(server);
  const auto hello = encode_frame(FrameType::kHello, 0, hello_of(server.client(1)).encode());
  half.send(std::string_view(hello).substr(0, hello.size() / 2), soon());
  CHECK(is_closed(half));  // After the time limit for the hello.
  CHECK(eventually([&] { return server.has_event("refused: a connection of process"); }));
  check_alive(*store, 1000);
  const auto rank1 = server.join(1);
  check_alive(*rank1->store(), 1001);
}

TEST_CASE("A rank that sends junk after its hello is dropped, the others are told that it left") {
  ServerThread server(2);
  const auto rank0 = server.join(0);
  const std::vector<std::string> bad{
      std::string(100, 'x'),
      encode_frame(FrameType::kWelcome, 1, ""),
      encode_frame(FrameType::kSet, 1, "no fields"),
      encode_frame(FrameType::kWait, 1, FieldWriter().u32(kMaxKeys + 1).take()),
      encode_frame(FrameType::kGet, 1,
                   FieldWriter().text(std::string(kMaxKeyBytes + 1, 'k')).take()),
      encode_frame(FrameType::kGet, 1, FieldWriter().text("never").take()) +
          encode_frame(FrameType::kGet, 1, FieldWriter().text("never").take()),
      encode_frame(FrameType::kSet, 1, std::string(100, 'x')).replace(12, 4, "\xff\xff\xff\xff")};
  for (const auto& bytes : bad) {
    auto channel = connect_raw(server);
    channel.send_frame(FrameType::kHello, 0, hello_of(server.client(1)).encode(), soon());
    CHECK(channel.receive_frame(soon()).type == FrameType::kWelcome);
    CHECK(eventually([&] { return rank0->left_ranks().empty(); }));
    channel.send(bytes, soon());
    CHECK(is_closed(channel));
    CHECK(eventually([&] { return rank0->left_ranks() == std::vector<int>{1}; }));
  }
  check_alive(*rank0->store(), 0);
  CHECK_FALSE(rank0->failure().has_value());
}

TEST_CASE("Of more connections than may wait for their hello the oldest is closed") {
  ControlServerOptions options;
  options.max_half_open = 8;
  options.hello_timeout = 20s;
  ServerThread server(1, options);
  std::vector<Channel> idle;
  idle.reserve(20);
  for (int i = 0; i < 20; ++i) idle.push_back(connect_raw(server));
  for (int i = 0; i < 12; ++i) CHECK(is_closed(idle[static_cast<std::size_t>(i)]));
  // The last 8 still wait: the rank comes in all the same, in place of one of them.
  const auto rank = server.join(0);
  check_alive(*rank->store(), 0);
  idle.back().send_frame(FrameType::kHello, 0, "", soon());
  CHECK(idle.back().receive_frame(soon()).type == FrameType::kRefused);
}

TEST_CASE("A connection that announces a report owes it, and brings one only") {
  ControlServerOptions options;
  options.hello_timeout = 200ms;
  ServerThread server(1, options);
  auto hello = hello_of(server.client(0));
  hello.role = ClientRole::kReporter;
  auto silent = connect_raw(server);
  silent.send_frame(FrameType::kHello, 0, hello.encode(), soon());
  CHECK(silent.receive_frame(soon()).type == FrameType::kWelcome);
  CHECK(is_closed(silent));
  CHECK(eventually([&] { return server.has_event("refused: a connection of process"); }));

  auto twice = connect_raw(server);
  twice.send_frame(FrameType::kHello, 0, hello.encode(), soon());
  CHECK(twice.receive_frame(soon()).type == FrameType::kWelcome);
  const auto report = ReportMessage{{0, -1, ErrorKind::kMisuse, "once"}}.encode();
  twice.send_frame(FrameType::kReport, 1, report, soon());
  CHECK(Reply::decode(twice.receive_frame(soon()).payload).value == "print");
  CHECK(eventually([&] { return server.has_event("report 0: once"); }));
  twice.send_frame(FrameType::kReport, 2, report, soon());
  CHECK(twice.receive_frame(soon()).type == FrameType::kRefused);
  CHECK(is_closed(twice));
}

TEST_CASE("A client that does not read its answers stops nobody, and its answers stay few") {
  ServerThread server(2);
  const auto rank0 = server.join(0);
  const auto store = rank0->store();
  store->set("big", std::string(1 << 20, 'b'));
  auto deaf = connect_raw(server);
  deaf.send_frame(FrameType::kHello, 0, hello_of(server.client(1)).encode(), soon());
  CHECK(eventually([&] { return server.has_event("hello 1"); }));
  const auto before = resident_bytes();
  const auto request = FieldWriter().text("g0/big").take();
  try {
    for (std::uint32_t i = 1; i < 1000; ++i) {
      deaf.send_frame(FrameType::kTryGet, i, request, Deadline::after(200ms));
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kTimeout);  // The server has stopped reading.
  }
  for (int i = 0; i < 20; ++i) check_alive(*store, i);
  // All answers are 1 GB. (What a sanitizer keeps of freed memory is allowed for.)
  CHECK(resident_bytes() - before < (std::int64_t{400} << 20));
  // When it listens again, the requests are answered in order. The welcome comes first.
  CHECK(deaf.receive_frame(soon()).type == FrameType::kWelcome);
  for (std::uint32_t i = 1; i < 50; ++i) {
    if (deaf.receive_frame(soon()).request != i) FAIL("answer " << i << " is missing");
  }
}

TEST_CASE("Running out of descriptors refuses newcomers and spares who is there") {
  ServerThread server(2);
  const auto rank0 = server.join(0);
  const auto store = rank0->store();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  // Newcomers' own sockets are made first: they share this process's descriptors.
  std::vector<Fd> sockets;
  sockets.reserve(4);
  for (int i = 0; i < 4; ++i)
    sockets.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<Fd> fill;
  rlimit low = before;
  low.rlim_cur = 256;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  for (;;) {
    Fd filler(::dup(0));
    if (!filler) break;
    fill.push_back(std::move(filler));
  }
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  {
    // The listener's address as the system knows it.
    auto* unix_address = reinterpret_cast<char*>(&address);
    const auto name = ControlAddress::parse(server.address()).name;
    address.ss_family = AF_UNIX;
    std::copy(name.begin(), name.end(), unix_address + sizeof(sa_family_t) + 1);
    bytes = static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size());
  }
  for (const auto& socket : sockets) {
    CHECK(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  }
  const bool was_refused = eventually(
      [&] { return server.has_event("refused: a connection was closed: this process is out"); });
  store->set("k", "v");
  const bool works = store->get("k", soon()) == "v";
  fill.clear();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(was_refused);
  CHECK(works);
  sockets.clear();
  check_alive(*server.join(1)->store(), 1);
}

TEST_CASE("The server serves through one descriptor that is quiet when nothing happens") {
  ControlServerOptions options;
  options.world_size = 1;
  options.run_id = "quiet";
  ControlServer server(options);
  const auto is_ready = [&](int milliseconds) {
    pollfd entry{server.epoll_fd(), POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) == 1;
  };
  CHECK_FALSE(is_ready(0));
  server.process();
  auto channel = Channel::connect(ControlAddress::parse(server.address()), soon());
  CHECK(is_ready(1000));
  server.process();
  CHECK_FALSE(is_ready(50));
  channel = Channel();
  CHECK(is_ready(1000));
  server.process();
  CHECK_FALSE(is_ready(50));
}

TEST_CASE("Options that cannot be are refused") {
  ControlServerOptions options;
  options.world_size = 0;
  CHECK(error_of([&] { ControlServer server(options); }).kind() == ErrorKind::kInvalidArgument);
  options.world_size = 1;
  options.address = "tcp:1";
  CHECK(error_of([&] { ControlServer server(options); }).kind() == ErrorKind::kInvalidArgument);
}
