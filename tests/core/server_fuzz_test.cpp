// The control server against accepted clients that send random but well-formed frames.
#include "control/handshake.h"
#include "convoy/control/frame.h"
#include "core/support.h"
#include "support/catch.h"

#include <random>

using namespace convoy;
using namespace convoy::test;

namespace {

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed) : random_(seed) {}

  std::string frame() {
    static constexpr FrameType kTypes[] = {
        FrameType::kSet,        FrameType::kGet,     FrameType::kTryGet, FrameType::kWait,
        FrameType::kAdd,        FrameType::kCancel,  FrameType::kReport, FrameType::kCompareSet,
        FrameType::kRemove,     FrameType::kFinish,  FrameType::kSet,    FrameType::kSet,
        FrameType::kMembership, FrameType::kGoodbye, FrameType::kHello,  FrameType::kReply};
    // Types at the end close the connection; they are drawn less often.
    const auto drawn = random_() % 100 < 95 ? random_() % 12 : 12 + random_() % 4;
    return encode_frame(kTypes[drawn], static_cast<std::uint32_t>(random_() % 20), payload());
  }

 private:
  // Fields of every kind in any order: now and then they are what the request wants.
  std::string payload() {
    FieldWriter writer;
    for (auto fields = random_() % 4; fields > 0; --fields) {
      switch (random_() % 4) {
        case 0: writer.u32(static_cast<std::uint32_t>(random_() % 3)); break;
        case 1: writer.i64(static_cast<std::int64_t>(random_())); break;
        case 2: writer.text(concat("key", random_() % 5)); break;
        default: writer.text(std::string(random_() % 100, 'v')); break;
      }
    }
    return writer.take();
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("Random frames of accepted clients do no harm to the server or the others") {
  constexpr int kClients = 3;
  ServerThread server(kClients + 1);
  const auto session = server.join(kClients);
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  Fuzzer fuzzer(seed);
  for (int round = 0; round < 60; ++round) {
    std::vector<Channel> channels;
    for (int rank = 0; rank < kClients; ++rank) {
      // The rank's connection of the round before may not have been taken down yet.
      CHECK(eventually([&] {
        try {
          auto admission = shake_hands(server.client(rank), ClientRole::kRank, Deadline::after(5s));
          channels.push_back(std::move(admission.channel));
          return true;
        } catch (const Error& error) {
          return error.kind() != ErrorKind::kMismatch;
        }
      }));
    }
    REQUIRE(channels.size() == kClients);
    for (int i = 0; i < 50; ++i) {
      try {
        channels[static_cast<std::size_t>(i % kClients)].send(fuzzer.frame(), Deadline::after(5s));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kPeerLost);  // The server has closed this one.
      }
    }
    session->store()->set("mine", std::to_string(round));
    REQUIRE(session->store()->try_get("mine") == std::to_string(round));
  }
}
