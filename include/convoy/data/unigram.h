// The entropy of a text's bytes taken one by one: what a model must beat to have learned anything.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace convoy::data {

/// Counts byte values.
class ByteHistogram {
 public:
  void add(std::span<const std::uint8_t> bytes) {
    for (const std::uint8_t byte : bytes) ++counts_[byte];
  }
  std::int64_t count(std::uint8_t byte) const { return counts_[byte]; }
  /// -sum p ln p over the counted bytes, in nats; 0 when nothing was counted.
  double entropy_nats() const;

 private:
  std::array<std::int64_t, 256> counts_{};
};

}  // namespace convoy::data
