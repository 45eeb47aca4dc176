// The parts of the host backend by themselves: memory, sockets, wake-ups, the first error.
#include "comm/host/host_group.h"
#include "comm/host/packet_socket.h"
#include "comm/host/segment.h"
#include "comm/host/wake_up.h"
#include "convoy/base/check.h"
#include "support/catch.h"
#include "support/check.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;
using namespace std::chrono_literals;

namespace {

struct TwoViews {
  TwoViews() {
    const auto bytes = layout_of_group(2).total_bytes;
    auto base = cache.map(segment.fd(), 0, bytes);
    REQUIRE(segment.reserve(0, bytes, base->data()) == 0);
    for (int r = 0; r < 2; ++r) views.emplace_back("test", r, 2, base);
  }
  MappingCache cache;
  Segment segment = Segment::create();
  std::vector<HostGroup> views;
};

}  // namespace

TEST_CASE("a segment cannot be shrunk, and only such a one is taken from a peer") {
  auto segment = Segment::create();
  REQUIRE(segment.reserve(0, 8192, nullptr) == 0);
  CHECK(::ftruncate(segment.fd(), 4096) != 0);
  CHECK_NOTHROW(Segment::adopt(Fd(::dup(segment.fd())), 8192));
  check_throws(ErrorKind::kProtocol, "not a segment",
               [&] { Segment::adopt(Fd(::dup(segment.fd())), 8193); });
  const Fd unsealed(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 8192) == 0);
  check_throws(ErrorKind::kProtocol, "not a segment",
               [&] { Segment::adopt(Fd(::dup(unsealed.get())), 8192); });
}

TEST_CASE("a limit of file sizes is an error number, not a signal") {
  // In a child, because a hard limit cannot be raised again.
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto segment = Segment::create();
    const rlimit limit{8192, 8192};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(1);
    if (segment.reserve(0, 8192, nullptr) != 0) ::_exit(2);
    if (segment.reserve(8192, 4096, nullptr) != EFBIG) ::_exit(3);
    if (file_size_limit() != 8192) ::_exit(4);
    sigset_t pending;
    sigpending(&pending);
    ::_exit(sigismember(&pending, SIGXFSZ) == 0 ? 0 : 5);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("released pages come back as zeros") {
  auto segment = Segment::create();
  REQUIRE(segment.reserve(0, 4096, nullptr) == 0);
  const Mapping mapping(segment.fd(), 0, 4096);
  std::memset(mapping.data(), 7, 4096);
  segment.release(0, 4096);
  REQUIRE(segment.reserve(0, 4096, nullptr) == 0);
  CHECK(mapping.data()[100] == std::byte{0});
}

TEST_CASE("a cache maps a range once, and each segment by itself") {
  MappingCache cache;
  auto first = Segment::create();
  auto second = Segment::create();
  REQUIRE(first.reserve(0, 8192, nullptr) == 0);
  REQUIRE(second.reserve(0, 8192, nullptr) == 0);
  const Fd duplicate(::dup(first.fd()));
  const auto a = cache.map(first.fd(), 0, 4096);
  CHECK(cache.map(duplicate.get(), 0, 4096) == a);
  CHECK(cache.map(first.fd(), 4096, 4096) != a);
  CHECK(cache.map(second.fd(), 0, 4096) != a);
}

TEST_CASE("the first error of a group stays, whoever reads it") {
  TwoViews two;
  CHECK_FALSE(two.views[0].failure());
  two.views[1].fail(Error(ErrorKind::kTimeout, "first", 1));
  two.views[0].fail(Error(ErrorKind::kMemory, "second", 0));
  for (const auto& view : two.views) {
    REQUIRE(view.failure());
    CHECK(view.failure()->what() == std::string("first"));
    CHECK(view.failure()->kind() == ErrorKind::kTimeout);
    CHECK(view.failure()->rank() == 1);
  }
}

TEST_CASE("a long error text is cut, not lost") {
  TwoViews two;
  two.views[0].fail(Error(ErrorKind::kSystem, std::string(5000, 'x')));
  CHECK(std::string(two.views[1].failure()->what()) == std::string(kErrorTextBytes - 1, 'x'));
}

TEST_CASE("a rank killed while it writes the first error does not hang the others") {
  TwoViews two;
  // The state in which such a rank leaves the slot; the head of the segment is the slot.
  const auto mapping = two.cache.map(two.segment.fd(), 0, layout_of_group(2).total_bytes);
  reinterpret_cast<ControlHead*>(mapping->data())
      ->error.state.store(ErrorSlot::State::kBeingWritten);
  CHECK(two.views[0].has_failed());
  const auto begin = std::chrono::steady_clock::now();
  CHECK(two.views[0].failure()->kind() == ErrorKind::kPeerLost);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("a sleeper wakes by the bell, also by one that rang before it slept, or by its time") {
  TwoViews two;
  auto& block = two.views[0].block(0);
  const auto begin = std::chrono::steady_clock::now();
  {
    Sleeper sleeper(block);
    ring_if_asleep(block);
    sleeper.sleep(30s);
  }
  {
    std::jthread ringer([&] {
      std::this_thread::sleep_for(50ms);
      two.views[1].wake_peers();
    });
    Sleeper sleeper(block);
    sleeper.sleep(30s);
  }
  CHECK(block.sleeping.load() == 0);
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
  Sleeper sleeper(block);
  const auto alone = std::chrono::steady_clock::now();
  sleeper.sleep(20ms);
  CHECK(std::chrono::steady_clock::now() - alone >= 19ms);
}

TEST_CASE("packets come whole, with a descriptor, and too long ones end the connection") {
  auto listener = listen_for_packets();
  CHECK_FALSE(accept_packet_socket(listener.socket));
  const auto client = connect_packet_socket(listener.name);
  REQUIRE(client);
  const auto server = accept_packet_socket(listener.socket);
  REQUIRE(server);
  CHECK(peer_pid(*server) == ::getpid());

  std::array<char, 16> buffer{};
  CHECK(receive_packet(*server, buffer.data(), buffer.size()).kind == Packet::Kind::kNone);
  REQUIRE(send_packet(*client, "hello", 5, listener.socket.get()));
  REQUIRE(send_packet(*client, "you", 3));
  auto packet = receive_packet(*server, buffer.data(), buffer.size());
  CHECK(packet.kind == Packet::Kind::kMessage);
  CHECK(std::string(buffer.data(), packet.bytes) == "hello");
  CHECK(packet.passed_fd);
  packet = receive_packet(*server, buffer.data(), buffer.size());
  CHECK(std::string(buffer.data(), packet.bytes) == "you");
  CHECK_FALSE(packet.passed_fd);
  REQUIRE(send_packet(*client, std::string(17, 'x').data(), 17));
  CHECK(receive_packet(*server, buffer.data(), buffer.size()).kind == Packet::Kind::kEnd);

  listener.socket.reset();
  CHECK_FALSE(connect_packet_socket(listener.name));
}

TEST_CASE("the machine has some memory left") {
  CHECK(available_memory() > 1 << 20);
  CHECK(available_memory() < std::int64_t{1} << 50);
}
