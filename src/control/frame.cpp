// Encodes frames, cuts a byte stream into frames, reads and writes payload fields.
#include "convoy/control/frame.h"

#include "convoy/base/check.h"

#include <bit>
#include <cstring>

namespace convoy {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie in memory");

constexpr std::uint32_t kMagic = 0x31595643;  // "CVY1"

// magic, type, zero, request, payload bytes
struct Header {
  std::uint32_t magic;
  std::uint16_t type;
  std::uint16_t zero;
  std::uint32_t request;
  std::uint32_t payload_bytes;
};
static_assert(sizeof(Header) == kFrameHeaderBytes);

bool is_known(std::uint16_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kRefused:
    case FrameType::kSet:
    case FrameType::kGet:
    case FrameType::kTryGet:
    case FrameType::kWait:
    case FrameType::kAdd:
    case FrameType::kCompareSet:
    case FrameType::kRemove:
    case FrameType::kCancel:
    case FrameType::kFinish:
    case FrameType::kReply:
    case FrameType::kReport:
    case FrameType::kFailure:
    case FrameType::kGoodbye:
    case FrameType::kMembership: return true;
  }
  return false;
}

Header read_header(const char* bytes) {
  Header header;
  std::memcpy(&header, bytes, sizeof(header));
  return header;
}

}  // namespace

std::string encode_frame(FrameType type, std::uint32_t request, std::string_view payload) {
  CONVOY_REQUIRE(payload.size() <= kMaxFrameBytes, kInvalidArgument, "a message of ",
                 payload.size(), " bytes is above the limit of ", kMaxFrameBytes, " bytes");
  const Header header{kMagic, static_cast<std::uint16_t>(type), 0, request,
                      static_cast<std::uint32_t>(payload.size())};
  std::string bytes;
  bytes.reserve(kFrameHeaderBytes + payload.size());
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(payload);
  return bytes;
}

void FrameDecoder::feed(std::string_view bytes) {
  if (begin_ > 0 && begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  }
  buffer_.append(bytes);
}

std::optional<Frame> FrameDecoder::next() {
  const std::size_t available = buffer_.size() - begin_;
  if (available < kFrameHeaderBytes) return std::nullopt;
  const auto header = read_header(buffer_.data() + begin_);
  CONVOY_REQUIRE(header.magic == kMagic && header.zero == 0 && is_known(header.type), kProtocol,
                 "bytes that are not a Convoy message");
  CONVOY_REQUIRE(header.payload_bytes <= max_payload_, kProtocol, "a message of ",
                 header.payload_bytes, " bytes, the limit here is ", max_payload_);
  if (available - kFrameHeaderBytes < header.payload_bytes) {
    // The rest of a large message follows; what was read already need not lie before it.
    if (begin_ > 0) {
      buffer_.erase(0, begin_);
      begin_ = 0;
    }
    return std::nullopt;
  }
  Frame frame{static_cast<FrameType>(header.type), header.request,
              buffer_.substr(begin_ + kFrameHeaderBytes, header.payload_bytes)};
  begin_ += kFrameHeaderBytes + header.payload_bytes;
  if (begin_ == buffer_.size()) {
    // A buffer that once held a large message is given back.
    if (buffer_.capacity() > (std::size_t{1} << 16)) buffer_ = std::string();
    buffer_.clear();
    begin_ = 0;
  }
  return frame;
}

std::size_t FrameDecoder::missing_bytes() const noexcept {
  const std::size_t available = buffer_.size() - begin_;
  if (available < kFrameHeaderBytes) return kFrameHeaderBytes - available;
  return kFrameHeaderBytes + read_header(buffer_.data() + begin_).payload_bytes - available;
}

FieldWriter& FieldWriter::u32(std::uint32_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

FieldWriter& FieldWriter::i64(std::int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

FieldWriter& FieldWriter::text(std::string_view value) {
  CONVOY_REQUIRE(value.size() <= kMaxFrameBytes, kInvalidArgument, "a text of ", value.size(),
                 " bytes is above the limit of ", kMaxFrameBytes, " bytes");
  u32(static_cast<std::uint32_t>(value.size()));
  bytes_.append(value);
  return *this;
}

std::string_view FieldReader::take(std::size_t count) {
  CONVOY_REQUIRE(count <= bytes_.size(), kProtocol, "a message that ends in the middle of a field");
  const auto taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

std::uint32_t FieldReader::u32() {
  std::uint32_t value = 0;
  std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
  return value;
}

std::int64_t FieldReader::i64() {
  std::int64_t value = 0;
  std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
  return value;
}

std::string_view FieldReader::text(std::size_t max_bytes) {
  const auto size = u32();
  CONVOY_REQUIRE(size <= max_bytes, kProtocol, "a text of ", size, " bytes, the limit here is ",
                 max_bytes);
  return take(size);
}

void FieldReader::finish() const {
  CONVOY_REQUIRE(bytes_.empty(), kProtocol, "a message with ", bytes_.size(), " bytes too many");
}

}  // namespace convoy
