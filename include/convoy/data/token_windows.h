// Windows of a text as tensors of tokens, for training and for validation.
#pragma once

#include "convoy/data/split.h"
#include "convoy/data/text.h"
#include "convoy/data/window_order.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace convoy::data {

/// Rows of tokens (bytes, 0..255) and of the tokens that follow them.
struct TokenBatch {
  at::Tensor inputs;   ///< int64 [rows, seq]
  at::Tensor targets;  ///< int64 [rows, seq]: inputs shifted by one.
  at::Tensor weights;  ///< float32 [rows]: 1, or 0 for a padded row.
};

/// Cuts windows out of a text. Immutable; any number of threads may read. Keeps references to the
/// text, split and order, which must outlive it.
class TokenWindows {
 public:
  TokenWindows(const Text& text, const TextSplit& split, const WindowOrder& order);

  /// Windows [first, first + rows) of the training order.
  TokenBatch train(std::int64_t first, std::int64_t rows) const;
  /// Held-out windows by number; -1 gives a padded row.
  TokenBatch validation(std::span<const std::int64_t> windows) const;
  /// Entropy of the held-out text's bytes, in nats.
  double validation_unigram_nats() const;

 private:
  const Text& text_;
  const TextSplit& split_;
  const WindowOrder& order_;
};

}  // namespace convoy::data
