// Permutes the windows of each epoch by a small Feistel network.
#include "convoy/data/window_order.h"

#include "convoy/base/check.h"

namespace convoy::data {
namespace {

/// A well mixed 64-bit function (splitmix64; Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

/// A permutation of [0, 4^half_bits), chosen by `key`.
std::uint64_t feistel(std::uint64_t value, unsigned half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < 4; ++round) {
    const std::uint64_t next = left ^ (mix(key ^ mix(round << 56U | right)) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

/// A permutation of [0, count).
std::uint64_t permute(std::uint64_t value, std::uint64_t count, std::uint64_t key) {
  unsigned half_bits = 1;
  while ((std::uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  do {
    value = feistel(value, half_bits, key);
  } while (value >= count);
  return value;
}

}  // namespace

WindowOrder::WindowOrder(std::int64_t train_bytes, std::int64_t seq, std::uint64_t seed)
    : seq_(seq), seed_(seed) {
  CONVOY_REQUIRE(seq >= 1 && train_bytes >= seq + 1, kInvalidArgument,
                 "the training text is too small: it has ", train_bytes,
                 " bytes, one window needs ", seq + 1, "; give more text or a shorter --seq");
  // One window less than fits, where possible, leaves room for the shift of each epoch.
  const std::int64_t fit = (train_bytes - 1) / seq;
  windows_ = fit > 1 ? fit - 1 : 1;
  slack_ = train_bytes - 1 - windows_ * seq;
}

std::int64_t WindowOrder::begin(std::uint64_t k) const {
  const auto count = static_cast<std::uint64_t>(windows_);
  const std::uint64_t epoch = k / count;
  const std::uint64_t key = mix(seed_ ^ mix(epoch));
  const std::uint64_t window = permute(k % count, count, key);
  const std::uint64_t shift = mix(key) % static_cast<std::uint64_t>(slack_ + 1);
  return static_cast<std::int64_t>(window) * seq_ + static_cast<std::int64_t>(shift);
}

}  // namespace convoy::data
