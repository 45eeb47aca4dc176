// The unit of the control protocol: a 16-byte header and a payload, with limits checked on the
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// Limits of the protocol. A header that breaks one is refused before anything is allocated.
inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kMaxFrameBytes = std::size_t{8} << 20;  ///< Payload of one frame.
inline constexpr std::size_t kMaxHelloBytes = 4096;   ///< Payload of a frame before the welcome.
inline constexpr std::size_t kMaxKeyBytes = 8192;     ///< One key, with its prefixes.
inline constexpr std::size_t kMaxKeys = 128 * 1024;   ///< Keys of one request.
inline constexpr std::uint32_t kProtocolVersion = 1;  ///< Compared in the hello.

/// What a frame says. Requests carry a number of the sender's choice, replies carry it back.
enum class FrameType : std::uint16_t {
  kHello = 1,    ///< rank -> server: who I am.
  kWelcome = 2,  ///< server -> rank: accepted; the job page comes with it.
  kRefused = 3,  ///< server -> rank: not accepted, with the reason.
  kSet = 10,     ///< Store requests, answered by kReply.
  kGet = 11,
  kTryGet = 12,
  kWait = 13,
  kAdd = 14,
  kCompareSet = 15,
  kRemove = 16,
  kCancel = 17,  ///< Ends the wait of the request with this number: it is answered now.
  kFinish = 18,  ///< I am done; answered when every rank is done or gone.
  kReply = 20,
  kReport = 30,      ///< rank -> server: I failed. Answered when it is clear who prints the error.
  kFailure = 31,     ///< server -> rank: the first failure of the job.
  kGoodbye = 32,     ///< rank -> server: the last frame of this session; answered.
  kMembership = 33,  ///< server -> rank: a rank joined or left.
};

/// One message.
struct Frame {
  FrameType type = FrameType::kReply;
  std::uint32_t request = 0;
  std::string payload;
};

/// Header and payload as bytes. Error: kInvalidArgument for a payload above kMaxFrameBytes.
std::string encode_frame(FrameType type, std::uint32_t request, std::string_view payload);

/// Cuts a stream of bytes into frames. Memory grows with the bytes that really came, never with a
/// length that a header only claims. Not thread-safe.
class FrameDecoder {
 public:
  explicit FrameDecoder(std::size_t max_payload = kMaxFrameBytes) : max_payload_(max_payload) {}

  /// Another limit from the next header on: small before the hello, full size after it.
  void set_max_payload(std::size_t bytes) noexcept { max_payload_ = bytes; }
  /// Takes bytes of the stream. Error: kProtocol (not our magic, unknown type, too long).
  void feed(std::string_view bytes);
  /// The next whole frame, if there is one. Error: kProtocol, as above.
  std::optional<Frame> next();
  /// Bytes that the frame begun lacks for sure, at least 1: reading no more than these never takes
  /// bytes of the frame after it. Call it after next() has returned nothing.
  std::size_t missing_bytes() const noexcept;

 private:
  std::size_t max_payload_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

/// Builds a payload: fixed-size little-endian integers and length-prefixed strings.
class FieldWriter {
 public:
  FieldWriter& u32(std::uint32_t value);
  FieldWriter& i64(std::int64_t value);
  FieldWriter& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads a payload back. Every read is checked against what is left. Error: kProtocol.
/// Refers to the payload it was made from.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : bytes_(bytes) {}
  std::uint32_t u32();
  std::int64_t i64();
  /// A string of at most `max_bytes`.
  std::string_view text(std::size_t max_bytes = kMaxFrameBytes);
  /// Error: kProtocol when bytes are left over.
  void finish() const;

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
};

}  // namespace convoy
