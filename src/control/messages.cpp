// Encoding and decoding of the control protocol's payloads.
#include "control/messages.h"

#include "convoy/base/check.h"
#include "convoy/control/frame.h"

namespace convoy {
namespace {

constexpr std::size_t kMaxErrorTextBytes = 64 * 1024;

ErrorKind read_kind(FieldReader& reader) {
  const auto kind = reader.u32();
  CONVOY_REQUIRE(kind <= static_cast<std::uint32_t>(ErrorKind::kInternal), kProtocol,
                 "a message with the unknown error kind ", kind);
  return static_cast<ErrorKind>(kind);
}

void write_error(FieldWriter& writer, ErrorKind kind, int rank, std::string_view text) {
  writer.u32(static_cast<std::uint32_t>(kind)).i64(rank).text(text.substr(0, kMaxErrorTextBytes));
}

Error read_error(FieldReader& reader) {
  const auto kind = read_kind(reader);
  const auto rank = static_cast<int>(reader.i64());
  return Error(kind, std::string(reader.text(kMaxErrorTextBytes)), rank);
}

void write_ranks(FieldWriter& writer, const std::vector<std::int64_t>& ranks) {
  writer.u32(static_cast<std::uint32_t>(ranks.size()));
  for (const auto rank : ranks) writer.i64(rank);
}

// Lists grow with what is really in the message, so a claimed length alone allocates nothing.
std::vector<std::int64_t> read_ranks(FieldReader& reader) {
  std::vector<std::int64_t> ranks;
  for (auto left = reader.u32(); left > 0; --left) ranks.push_back(reader.i64());
  return ranks;
}

void write_unfulfilled(FieldWriter& writer, const Unfulfilled& what) {
  writer.u32(what.key_count).u32(static_cast<std::uint32_t>(what.keys.size()));
  for (const auto& key : what.keys) writer.text(key);
  write_ranks(writer, what.not_joined);
  write_ranks(writer, what.left);
  write_ranks(writer, what.not_finished);
}

Unfulfilled read_unfulfilled(FieldReader& reader) {
  Unfulfilled what;
  what.key_count = reader.u32();
  for (auto left = reader.u32(); left > 0; --left) {
    what.keys.emplace_back(reader.text(kMaxKeyBytes));
  }
  what.not_joined = read_ranks(reader);
  what.left = read_ranks(reader);
  what.not_finished = read_ranks(reader);
  return what;
}

}  // namespace

std::string Hello::encode() const {
  return FieldWriter()
      .u32(version)
      .u32(static_cast<std::uint32_t>(role))
      .i64(rank)
      .i64(world_size)
      .text(run_id)
      .i64(generation)
      .take();
}

Hello Hello::decode(std::string_view payload) {
  FieldReader reader(payload);
  Hello hello;
  hello.version = reader.u32();
  if (hello.version != kProtocolVersion) return hello;
  const auto role = reader.u32();
  CONVOY_REQUIRE(role <= static_cast<std::uint32_t>(ClientRole::kReporter), kProtocol,
                 "a hello with the unknown role ", role);
  hello.role = static_cast<ClientRole>(role);
  hello.rank = reader.i64();
  hello.world_size = reader.i64();
  hello.run_id = reader.text(kMaxHelloBytes);
  hello.generation = reader.i64();
  reader.finish();
  return hello;
}

std::string encode_error(const Error& error) {
  FieldWriter writer;
  write_error(writer, error.kind(), error.rank(), error.what());
  return writer.take();
}

Error decode_error(std::string_view payload) {
  FieldReader reader(payload);
  auto error = read_error(reader);
  reader.finish();
  return error;
}

std::string ReportMessage::encode() const {
  FieldWriter writer;
  write_error(writer, report.kind, report.about, report.text);
  return writer.take();
}

ReportMessage ReportMessage::decode(std::string_view payload) {
  const auto error = decode_error(payload);
  return {{-1, error.rank(), error.kind(), error.what()}};
}

std::string MembershipMessage::encode() const {
  return FieldWriter().i64(rank).u32(has_left ? 1 : 0).take();
}

MembershipMessage MembershipMessage::decode(std::string_view payload) {
  FieldReader reader(payload);
  MembershipMessage message;
  message.rank = reader.i64();
  message.has_left = reader.u32() != 0;
  reader.finish();
  return message;
}

Reply Reply::ok(std::string value) {
  Reply reply;
  reply.value = std::move(value);
  return reply;
}

Reply Reply::nothing() {
  Reply reply;
  reply.status = ReplyStatus::kNothing;
  return reply;
}

Reply Reply::failed(Error error) {
  Reply reply;
  reply.status = ReplyStatus::kError;
  reply.error = std::move(error);
  return reply;
}

Reply Reply::not_fulfilled(Unfulfilled what) {
  Reply reply;
  reply.status = ReplyStatus::kUnfulfilled;
  reply.unfulfilled = std::move(what);
  return reply;
}

std::string Reply::encode() const {
  FieldWriter writer;
  writer.u32(static_cast<std::uint32_t>(status));
  switch (status) {
    case ReplyStatus::kOk: writer.text(value); break;
    case ReplyStatus::kNothing: break;
    case ReplyStatus::kError:
      write_error(writer, error->kind(), error->rank(), error->what());
      break;
    case ReplyStatus::kUnfulfilled: write_unfulfilled(writer, unfulfilled); break;
  }
  return writer.take();
}

Reply Reply::decode(std::string_view payload) {
  FieldReader reader(payload);
  const auto status = reader.u32();
  CONVOY_REQUIRE(status <= static_cast<std::uint32_t>(ReplyStatus::kUnfulfilled), kProtocol,
                 "a reply with the unknown status ", status);
  Reply reply;
  reply.status = static_cast<ReplyStatus>(status);
  switch (reply.status) {
    case ReplyStatus::kOk: reply.value = reader.text(); break;
    case ReplyStatus::kNothing: break;
    case ReplyStatus::kError: reply.error = read_error(reader); break;
    case ReplyStatus::kUnfulfilled: reply.unfulfilled = read_unfulfilled(reader); break;
  }
  reader.finish();
  return reply;
}

}  // namespace convoy
