// Arithmetic of held-out windows.
#include "convoy/data/split.h"

#include "convoy/base/check.h"

#include <algorithm>

namespace convoy::data {

TextSplit::TextSplit(std::int64_t text_bytes, std::int64_t window_bytes, std::int64_t windows)
    : text_bytes_(text_bytes), window_bytes_(window_bytes) {
  CONVOY_REQUIRE(window_bytes >= 1 && windows >= 1, kInvalidArgument,
                 "a split needs windows of at least one byte, and at least one of them; got ",
                 windows, " windows of ", window_bytes, " bytes");
  CONVOY_REQUIRE(text_bytes / 2 >= window_bytes, kInvalidArgument, "the text is too small: it has ",
                 text_bytes, " bytes, and one window to train on and one to validate on need ",
                 2 * window_bytes, "; give more text or a shorter --seq");
  windows_ = std::clamp<std::int64_t>(windows, 1,
                                      std::max<std::int64_t>(1, text_bytes / (10 * window_bytes)));
  block_bytes_ = text_bytes / windows_;
}

TextSplit::Extent TextSplit::train_extent(std::int64_t train_byte) const {
  CONVOY_CHECK(train_byte >= 0 && train_byte < train_bytes(), "training byte ", train_byte);
  const std::int64_t kept = block_bytes_ - window_bytes_;  // Of each block, for training.
  const std::int64_t block = kept == 0 ? windows_ : std::min(train_byte / kept, windows_);
  if (block == windows_) {  // What is left over behind the last block.
    const std::int64_t begin = train_byte + windows_ * window_bytes_;
    return {begin, text_bytes_ - begin};
  }
  const std::int64_t within = train_byte % kept;
  return {block * block_bytes_ + within, kept - within};
}

std::int64_t TextSplit::validation_begin(std::int64_t index) const {
  CONVOY_CHECK(index >= 0 && index < windows_, "held-out window ", index);
  return (index + 1) * block_bytes_ - window_bytes_;
}

}  // namespace convoy::data
