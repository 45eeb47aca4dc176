// Divides a text into a training part and held-out windows. Pure: numbers only.
#pragma once

#include <cstdint>

namespace convoy::data {

/// Holds out `windows` windows of `window_bytes` bytes each, spread evenly: the text is cut into
/// that many equal blocks and each gives its last bytes. So validation sees every part of the text,
/// its size does not grow with the text, and no byte of it is ever trained on. The training text is
/// what is left, end to end: training byte t lies at `train_extent(t).begin`.
class TextSplit {
 public:
  struct Extent {
    std::int64_t begin;  ///< Place in the text.
    std::int64_t bytes;  ///< Training bytes that follow on without a gap.
  };

  /// `windows` is lowered to what a tenth of the text holds, but not below 1.
  /// Error: kInvalidArgument when the text cannot hold a held-out window and as much for training.
  TextSplit(std::int64_t text_bytes, std::int64_t window_bytes, std::int64_t windows);

  std::int64_t train_bytes() const noexcept { return text_bytes_ - windows_ * window_bytes_; }
  Extent train_extent(std::int64_t train_byte) const;

  std::int64_t validation_windows() const noexcept { return windows_; }
  std::int64_t window_bytes() const noexcept { return window_bytes_; }
  /// Place in the text of held-out window `index`.
  std::int64_t validation_begin(std::int64_t index) const;

 private:
  std::int64_t text_bytes_;
  std::int64_t window_bytes_;
  std::int64_t windows_;
  std::int64_t block_bytes_;
};

}  // namespace convoy::data
