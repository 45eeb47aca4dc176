// What set, add, compare_set and remove mean.
#include "control/store_table.h"

#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/control/frame.h"

namespace convoy {
namespace {

// Lengths of key, value and expected value, and a reply's status.
constexpr std::size_t kFieldBytes = 64;

}  // namespace

std::size_t max_value_bytes(std::string_view key) noexcept {
  return kMaxFrameBytes - kFieldBytes - key.size();
}

void check_key(std::string_view key) {
  CONVOY_REQUIRE(!key.empty(), kInvalidArgument, "store: an empty key");
  CONVOY_REQUIRE(key.size() <= kMaxKeyBytes, kInvalidArgument, "store: a key of ", key.size(),
                 " bytes ('", key.substr(0, 40), "...') is above the limit of ", kMaxKeyBytes,
                 " bytes");
}

void StoreTable::set(std::string_view key, std::string_view value) {
  check_key(key);
  CONVOY_REQUIRE(value.size() <= max_value_bytes(key), kInvalidArgument, "store: a value of ",
                 value.size(), " bytes for key '", key, "' is above the limit of ",
                 max_value_bytes(key), " bytes");
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = key.size() + value.size();
  CONVOY_REQUIRE(bytes_ - before + after <= max_bytes_, kMemory, "store: key '", key, "' with ",
                 after, " bytes does not fit, ", bytes_, " of ", max_bytes_, " bytes are in use");
  if (found == values_.end()) {
    values_.emplace(key, value);
  } else {
    found->second = value;
  }
  bytes_ = bytes_ - before + after;
}

const std::string* StoreTable::find(std::string_view key) const {
  check_key(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t StoreTable::add(std::string_view key, std::int64_t amount) {
  std::int64_t before = 0;
  if (const auto* value = find(key)) {
    const auto number = parse_int(*value);
    CONVOY_REQUIRE(number.has_value(), kInvalidArgument, "store: add to key '", key,
                   "', whose value is no whole number");
    before = *number;
  }
  std::int64_t sum = 0;
  CONVOY_REQUIRE(!__builtin_add_overflow(before, amount, &sum), kInvalidArgument,
                 "store: add to key '", key, "' overflows: ", before, " + ", amount);
  set(key, std::to_string(sum));
  return sum;
}

std::string StoreTable::compare_set(std::string_view key, std::string_view expected,
                                    std::string_view desired) {
  const auto* value = find(key);
  const bool matches = value == nullptr ? expected.empty() : *value == expected;
  if (!matches) return value == nullptr ? std::string() : *value;
  set(key, desired);
  return std::string(desired);
}

bool StoreTable::remove(std::string_view key) {
  check_key(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
  return true;
}

}  // namespace convoy
