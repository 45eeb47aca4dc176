// Addresses, listeners and channels.
#include "convoy/control/channel.h"

#include "core/support.h"
#include "support/catch.h"

#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;

namespace {

Deadline soon() { return Deadline::after(5s); }

struct Pair {
  Channel left, right;
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    left = Channel(Fd(ends[0]));
    right = Channel(Fd(ends[1]));
  }
};

struct Folder {
  std::string path;
  explicit Folder(mode_t mode) {
    char name[] = "/tmp/convoy-test-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
  }
  ~Folder() { ::rmdir(path.c_str()); }
};

}  // namespace

TEST_CASE("Addresses are parsed and written") {
  CHECK(ControlAddress::parse("unix:@name").is_abstract);
  CHECK(ControlAddress::parse("unix:@name").name == "name");
  CHECK_FALSE(ControlAddress::parse("unix:/run/x").is_abstract);
  CHECK(ControlAddress::parse("unix:/run/x").to_string() == "unix:/run/x");
  CHECK(ControlAddress::parse("unix:@a b").to_string() == "unix:@a b");
  for (const char* bad :
       {"", "unix:", "unix:@", "unix:relative", "tcp:127.0.0.1:1", "@name", "/x"}) {
    INFO(bad);
    CHECK(error_of([&] { ControlAddress::parse(bad); }).kind() == ErrorKind::kInvalidArgument);
  }
  const ControlAddress long_name{std::string(200, 'x'), true};
  CHECK(error_of([&] { Listener listener(long_name); }).kind() == ErrorKind::kInvalidArgument);
}

TEST_CASE("A channel connects to a listener of the same user") {
  Listener listener(ControlAddress::random("test"));
  auto client = Channel::connect(listener.address(), soon());
  auto server = listener.accept(soon());
  CHECK(server.peer().uid == ::geteuid());
  CHECK(server.peer().pid == ::getpid());
  client.send_frame(FrameType::kSet, 5, "payload", soon());
  const auto frame = server.receive_frame(soon());
  CHECK(frame.request == 5);
  CHECK(frame.payload == "payload");
}

TEST_CASE("Connecting where nobody listens is a lost peer") {
  const auto error = error_of([] { Channel::connect(ControlAddress::random("nobody"), soon()); });
  CHECK(error.kind() == ErrorKind::kPeerLost);
  CHECK(contains(error.what(), "nobody listens on unix:@nobody-"));
  CHECK(error_of([] {
          Channel::connect({"/tmp/convoy-no-such-socket", false}, soon());
        }).kind() == ErrorKind::kPeerLost);
}

TEST_CASE("Two listeners cannot have one name") {
  Listener first(ControlAddress::random("test"));
  const auto error = error_of([&] { Listener second(first.address()); });
  CHECK(error.kind() == ErrorKind::kSystem);
  CHECK(contains(error.what(), first.address().to_string()));
  Channel::connect(first.address(), soon());  // The first one is unharmed.
}

TEST_CASE("A socket file lies in a private folder and goes with its listener") {
  const Folder folder(0700);
  const ControlAddress address{folder.path + "/socket", false};
  {
    Listener listener(address);
    CHECK(::access(address.name.c_str(), F_OK) == 0);
    Channel::connect(address, soon());
    // A second listener is refused, and does not take the first one's file with it.
    CHECK(error_of([&] { Listener second(address); }).kind() == ErrorKind::kSystem);
    CHECK(::access(address.name.c_str(), F_OK) == 0);
    Listener moved(std::move(listener));
    CHECK(::access(address.name.c_str(), F_OK) == 0);
  }
  CHECK(::access(address.name.c_str(), F_OK) != 0);
  const Folder open_folder(0755);
  const auto error = error_of([&] { Listener listener({open_folder.path + "/socket", false}); });
  CHECK(error.kind() == ErrorKind::kInvalidArgument);
  CHECK(contains(error.what(), "chmod 700"));
}

TEST_CASE("Every wait of a channel ends at its deadline") {
  Pair pair;
  char byte = 0;
  const auto began = Deadline::Clock::now();
  CHECK(error_of([&] { pair.left.receive(&byte, 1, Deadline::after(50ms)); }).kind() ==
        ErrorKind::kTimeout);
  const std::string much(8 << 20, 'x');
  CHECK(error_of([&] { pair.left.send(much, Deadline::after(50ms)); }).kind() ==
        ErrorKind::kTimeout);
  Listener listener(ControlAddress::random("test"));
  CHECK(error_of([&] { listener.accept(Deadline::after(50ms)); }).kind() == ErrorKind::kTimeout);
  CHECK(Deadline::Clock::now() - began >= 150ms);
  CHECK(Deadline::Clock::now() - began < 5s);
}

TEST_CASE("The end of the peer is a lost peer, also in the middle of a frame") {
  Pair pair;
  const auto bytes = encode_frame(FrameType::kSet, 1, "payload");
  pair.left.send(std::string_view(bytes).substr(0, 18), soon());
  pair.left.shut_down();
  CHECK(error_of([&] { pair.right.receive_frame(soon()); }).kind() == ErrorKind::kPeerLost);
  CHECK(error_of([&] { pair.left.send("x", soon()); }).kind() == ErrorKind::kPeerLost);
}

TEST_CASE("receive_frame takes one frame and no more, at most as large as allowed") {
  Pair pair;
  pair.left.send(encode_frame(FrameType::kSet, 1, "one") + encode_frame(FrameType::kGet, 2, "two"),
                 soon());
  CHECK(pair.right.receive_frame(soon()).payload == "one");
  CHECK(error_of([&] { pair.right.receive_frame(soon(), 2); }).kind() == ErrorKind::kProtocol);
}

TEST_CASE("Large frames pass in both directions at once") {
  Pair pair;
  const std::string big(kMaxFrameBytes, 'b');
  std::thread other([&] {
    pair.right.send_frame(FrameType::kReply, 1, "small", soon());
    check(pair.right.receive_frame(soon()).payload.size() == kMaxFrameBytes, "size");
  });
  pair.left.send_frame(FrameType::kSet, 1, big, soon());
  CHECK(pair.left.receive_frame(soon()).payload == "small");
  other.join();
}

TEST_CASE("A descriptor travels with the bytes it was sent with, closed on exec") {
  Pair pair;
  const auto file = make_memory_file("passed", 4096);
  REQUIRE(::pwrite(file.get(), "content", 7, 0) == 7);
  pair.left.send_frame(FrameType::kWelcome, 0, "with", soon(), file.get());
  pair.left.send_frame(FrameType::kWelcome, 0, "without", soon());
  CHECK(pair.right.receive_frame(soon()).payload == "with");
  const auto received = pair.right.take_fd();
  REQUIRE(static_cast<bool>(received));
  CHECK((::fcntl(received.get(), F_GETFD) & FD_CLOEXEC) != 0);
  char content[8] = {};
  REQUIRE(::pread(received.get(), content, 7, 0) == 7);
  CHECK(std::string(content) == "content");
  CHECK(pair.right.receive_frame(soon()).payload == "without");
  CHECK_FALSE(static_cast<bool>(pair.right.take_fd()));
}
