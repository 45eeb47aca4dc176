// Frames and payload fields: round trips, limits and junk.
#include "convoy/control/frame.h"

#include "control/messages.h"
#include "core/support.h"
#include "support/catch.h"

#include <random>

using namespace convoy;
using namespace convoy::test;

namespace {

// A header with any content: magic, type, zero, request, payload bytes.
std::string header(std::uint32_t magic, std::uint16_t type, std::uint16_t zero,
                   std::uint32_t payload_bytes) {
  std::string bytes;
  const auto add = [&](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(magic);
  add(type);
  add(zero);
  add(std::uint32_t{1});
  add(payload_bytes);
  return bytes;
}

constexpr std::uint32_t kMagic = 0x31595643;

Error decode_error_of(std::string_view bytes) {
  return error_of([&] {
    FrameDecoder decoder;
    decoder.feed(bytes);
    decoder.next();
  });
}

}  // namespace

TEST_CASE("Frames come out as they went in, however the stream is cut") {
  const std::vector<Frame> frames{{FrameType::kSet, 1, ""},
                                  {FrameType::kReply, 0xffffffff, "x"},
                                  {FrameType::kGet, 7, std::string(70'001, 'a')},
                                  {FrameType::kHello, 0, std::string("\0\1\2", 3)}};
  std::string stream;
  for (const auto& frame : frames) stream += encode_frame(frame.type, frame.request, frame.payload);
  for (const std::size_t piece : {1u, 15u, 16u, 17u, 65'536u, 1'000'000u}) {
    FrameDecoder decoder;
    std::vector<Frame> got;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      decoder.feed(std::string_view(stream).substr(at, piece));
      while (auto frame = decoder.next()) got.push_back(std::move(*frame));
    }
    REQUIRE(got.size() == frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      CHECK(got[i].type == frames[i].type);
      CHECK(got[i].request == frames[i].request);
      CHECK(got[i].payload == frames[i].payload);
    }
  }
}

TEST_CASE("missing_bytes never reaches into the next frame") {
  const auto stream =
      encode_frame(FrameType::kSet, 1, "hello") + encode_frame(FrameType::kGet, 2, "");
  FrameDecoder decoder;
  std::size_t at = 0;
  for (int i = 0; i < 2; ++i) {
    std::optional<Frame> frame;
    while (!(frame = decoder.next())) {
      const auto missing = decoder.missing_bytes();
      REQUIRE(missing >= 1);
      decoder.feed(std::string_view(stream).substr(at, missing));
      at += missing;
    }
    CHECK(frame->request == static_cast<std::uint32_t>(i + 1));
  }
  CHECK(at == stream.size());
}

TEST_CASE("Headers that break a limit are refused before their payload comes") {
  CHECK(decode_error_of(header(kMagic, 10, 0, kMaxFrameBytes + 1)).kind() == ErrorKind::kProtocol);
  CHECK(decode_error_of(header(kMagic, 10, 0, 0xffffffff)).kind() == ErrorKind::kProtocol);
  CHECK(decode_error_of(header(kMagic + 1, 10, 0, 0)).kind() == ErrorKind::kProtocol);
  CHECK(decode_error_of(header(kMagic, 999, 0, 0)).kind() == ErrorKind::kProtocol);
  CHECK(decode_error_of(header(kMagic, 10, 1, 0)).kind() == ErrorKind::kProtocol);
  FrameDecoder small(kMaxHelloBytes);
  small.feed(header(kMagic, 1, 0, kMaxHelloBytes + 1));
  CHECK(error_of([&] { small.next(); }).kind() == ErrorKind::kProtocol);
  CHECK(error_of([] {
          encode_frame(FrameType::kSet, 1, std::string(kMaxFrameBytes + 1, 'x'));
        }).kind() == ErrorKind::kInvalidArgument);
}

TEST_CASE("Random bytes never crash a decoder") {
  std::mt19937 random(4711);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    // Half of them begin like a frame, so that payloads are reached too.
    if (round % 2 == 0) bytes.insert(0, encode_frame(FrameType::kReport, 1, bytes));
    try {
      FrameDecoder decoder;
      decoder.feed(bytes);
      while (const auto frame = decoder.next()) ReportMessage::decode(frame->payload);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kProtocol);
    }
  }
}

TEST_CASE("Every cut of every message is refused, and the whole is read back") {
  Unfulfilled facts{3, {"a", "b"}, {1, 2}, {}, {5}};
  const std::vector<std::string> payloads{
      Hello{kProtocolVersion, ClientRole::kReporter, 2, 5, "run", 7}.encode(),
      ReportMessage{{-1, 2, ErrorKind::kMemory, "text"}}.encode(),
      MembershipMessage{4, true}.encode(),
      Reply::ok("value").encode(),
      Reply::failed(Error(ErrorKind::kTimeout, "late", 1)).encode(),
      Reply::not_fulfilled(facts).encode()};
  const std::vector<std::function<void(std::string_view)>> decoders{
      [](auto p) { Hello::decode(p); },
      [](auto p) { ReportMessage::decode(p); },
      [](auto p) { MembershipMessage::decode(p); },
      [](auto p) { Reply::decode(p); },
      [](auto p) { Reply::decode(p); },
      [](auto p) { Reply::decode(p); }};
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    decoders[i](payloads[i]);
    for (std::size_t size = 0; size < payloads[i].size(); ++size) {
      const auto cut = std::string_view(payloads[i]).substr(0, size);
      CHECK(error_of([&] { decoders[i](cut); }).kind() == ErrorKind::kProtocol);
    }
    CHECK(error_of([&] { decoders[i](payloads[i] + "x"); }).kind() == ErrorKind::kProtocol);
  }
  const auto reply = Reply::decode(payloads[5]).unfulfilled;
  CHECK(reply.key_count == 3);
  CHECK(reply.keys == std::vector<std::string>{"a", "b"});
  CHECK(reply.not_joined == std::vector<std::int64_t>{1, 2});
  CHECK(reply.not_finished == std::vector<std::int64_t>{5});
  const auto error = *Reply::decode(payloads[4]).error;
  CHECK(error.kind() == ErrorKind::kTimeout);
  CHECK(error.rank() == 1);
  CHECK(std::string(error.what()) == "late");
}

TEST_CASE("A hello of another version gives its version and nothing else") {
  Hello hello{99, ClientRole::kRank, 1, 2, "run", 0};
  CHECK(Hello::decode(hello.encode()).version == 99);
  CHECK(Hello::decode(hello.encode()).run_id.empty());
}

TEST_CASE("A claimed length or unknown kind in a payload is refused") {
  const auto huge_list = FieldWriter().u32(3).u32(1).u32(0xffffffff).take();
  CHECK(error_of([&] { Reply::decode(huge_list); }).kind() == ErrorKind::kProtocol);
  const auto bad_kind = FieldWriter().u32(77).i64(0).text("x").take();
  CHECK(error_of([&] { decode_error(bad_kind); }).kind() == ErrorKind::kProtocol);
}
