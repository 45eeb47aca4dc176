// Store requests: decoded, applied to the table, answered at once or when keys appear.
#include "control/store_service.h"

#include "convoy/base/check.h"

#include <vector>

namespace convoy {
namespace {

constexpr std::size_t kMaxWaitsOfConnection = 1024;

}  // namespace

bool StoreService::serves(FrameType type) {
  switch (type) {
    case FrameType::kSet:
    case FrameType::kGet:
    case FrameType::kTryGet:
    case FrameType::kWait:
    case FrameType::kAdd:
    case FrameType::kCompareSet:
    case FrameType::kRemove: return true;
    default: return false;
  }
}

void StoreService::serve(RequestId request, const Frame& frame) {
  if (frame.type == FrameType::kGet || frame.type == FrameType::kWait) {
    wait_for_keys(request, frame);
    return;
  }
  Reply reply;
  try {
    reply = apply(frame);
  } catch (const Error& error) {
    // What the caller asked for cannot be; the connection is sound.
    if (error.kind() == ErrorKind::kProtocol) throw;
    reply = Reply::failed(error);
  }
  answer_(request, reply);
  if (reply.status != ReplyStatus::kOk || frame.type == FrameType::kTryGet) return;
  FieldReader reader(frame.payload);
  fulfil(reader.text(kMaxKeyBytes));
}

Reply StoreService::apply(const Frame& frame) {
  FieldReader reader(frame.payload);
  const auto key = reader.text(kMaxKeyBytes);
  switch (frame.type) {
    case FrameType::kSet: {
      const auto value = reader.text();
      reader.finish();
      table_.set(key, value);
      return Reply::ok();
    }
    case FrameType::kTryGet: {
      reader.finish();
      const auto* value = table_.find(key);
      return value == nullptr ? Reply::nothing() : Reply::ok(*value);
    }
    case FrameType::kAdd: {
      const auto amount = reader.i64();
      reader.finish();
      return Reply::ok(std::to_string(table_.add(key, amount)));
    }
    case FrameType::kCompareSet: {
      const auto expected = reader.text();
      const auto desired = reader.text();
      reader.finish();
      return Reply::ok(table_.compare_set(key, expected, desired));
    }
    case FrameType::kRemove: {
      reader.finish();
      return table_.remove(key) ? Reply::ok() : Reply::nothing();
    }
    default: break;
  }
  CONVOY_CHECK(false, "not a store request");
}

void StoreService::wait_for_keys(RequestId request, const Frame& frame) {
  FieldReader reader(frame.payload);
  const auto count = frame.type == FrameType::kGet ? 1u : reader.u32();
  CONVOY_REQUIRE(count <= kMaxKeys, kProtocol, "a request for ", count, " keys, the limit is ",
                 kMaxKeys);
  std::set<std::string> missing;
  std::string_view key;
  try {
    for (std::uint32_t i = 0; i < count; ++i) {
      key = reader.text(kMaxKeyBytes);
      if (table_.find(key) == nullptr) missing.emplace(key);
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kProtocol) throw;
    answer_(request, Reply::failed(error));
    return;
  }
  reader.finish();
  const bool wants_value = frame.type == FrameType::kGet;
  if (missing.empty()) {
    answer_(request, wants_value ? Reply::ok(*table_.find(key)) : Reply::ok());
    return;
  }
  CONVOY_REQUIRE(!waits_.contains(request), kProtocol, "request number ", request.number,
                 " is used twice");
  CONVOY_REQUIRE(waits_.count(request.connection) < kMaxWaitsOfConnection, kProtocol, "more than ",
                 kMaxWaitsOfConnection, " requests that wait");
  waits_.add(request, std::move(missing));
  if (wants_value) wants_value_.insert(request);
}

void StoreService::fulfil(std::string_view key) {
  const auto* value = table_.find(key);
  if (value == nullptr) return;
  for (const auto request : waits_.appeared(key)) {
    answer_(request, wants_value_.erase(request) > 0 ? Reply::ok(*value) : Reply::ok());
  }
}

std::optional<std::set<std::string>> StoreService::cancel(RequestId request) {
  if (!waits_.contains(request)) return std::nullopt;
  wants_value_.erase(request);
  return waits_.cancel(request);
}

void StoreService::drop(std::uint64_t connection) {
  waits_.drop(connection);
  std::erase_if(wants_value_, [&](RequestId id) { return id.connection == connection; });
}

}  // namespace convoy
