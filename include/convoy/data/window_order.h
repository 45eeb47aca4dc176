// Which window of the training text comes when. Pure: numbers only, nothing kept between calls.
#pragma once

#include <cstdint>

namespace convoy::data {

/// The order of training windows: epoch after epoch, each window of the text once an epoch, in an
/// order and from a starting byte that differ from epoch to epoch. The k-th window is computed from
/// k alone, so every strategy and world trains the same text and nothing needs saving. The
/// permutation is a four-round Feistel network over the next power of four, walked until it falls
/// below the number of windows (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class WindowOrder {
 public:
  /// Windows of `seq` inputs, each with the byte that follows: `seq` + 1 bytes of `train_bytes`.
  /// Error: kInvalidArgument when not one window fits.
  WindowOrder(std::int64_t train_bytes, std::int64_t seq, std::uint64_t seed);

  /// Windows of one epoch.
  std::int64_t windows() const noexcept { return windows_; }
  /// First byte of the k-th window ever trained (k from 0).
  std::int64_t begin(std::uint64_t k) const;

 private:
  std::int64_t seq_;
  std::int64_t windows_;
  std::int64_t slack_;  ///< Bytes by which an epoch's first window may be shifted.
  std::uint64_t seed_;
};

}  // namespace convoy::data
