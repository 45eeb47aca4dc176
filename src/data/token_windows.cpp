// Copies windows of bytes into tensors.
#include "convoy/data/token_windows.h"

#include "convoy/base/check.h"
#include "convoy/data/unigram.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace convoy::data {
namespace {

/// Rows of seq + 1 bytes become inputs and targets. Plain loops: this runs beside the training, and
/// a torch operator might start threads of its own.
TokenBatch to_batch(const std::vector<std::uint8_t>& bytes, std::int64_t rows, std::int64_t width,
                    at::Tensor weights) {
  TokenBatch batch{at::empty({rows, width - 1}, at::kLong), at::empty({rows, width - 1}, at::kLong),
                   std::move(weights)};
  auto* inputs = batch.inputs.data_ptr<std::int64_t>();
  auto* targets = batch.targets.data_ptr<std::int64_t>();
  for (auto row = bytes.begin(); row != bytes.end(); row += width) {
    inputs = std::copy(row, row + width - 1, inputs);
    targets = std::copy(row + 1, row + width, targets);
  }
  return batch;
}

}  // namespace

TokenWindows::TokenWindows(const Text& text, const TextSplit& split, const WindowOrder& order)
    : text_(text), split_(split), order_(order) {}

TokenBatch TokenWindows::train(std::int64_t first, std::int64_t rows) const {
  const std::int64_t width = split_.window_bytes();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * width));
  std::span<std::uint8_t> all(bytes);
  for (std::int64_t row = 0; row < rows; ++row) {
    auto rest = all.subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
    std::int64_t at = order_.begin(static_cast<std::uint64_t>(first + row));
    while (!rest.empty()) {  // A window may run across a held-out one.
      const auto extent = split_.train_extent(at);
      const auto count = std::min(rest.size(), static_cast<std::size_t>(extent.bytes));
      text_.read(extent.begin, rest.first(count));
      rest = rest.subspan(count);
      at += static_cast<std::int64_t>(count);
    }
  }
  return to_batch(bytes, rows, width, at::ones({rows}));
}

TokenBatch TokenWindows::validation(std::span<const std::int64_t> windows) const {
  const std::int64_t width = split_.window_bytes();
  const auto rows = static_cast<std::int64_t>(windows.size());
  std::vector<std::uint8_t> bytes(windows.size() * static_cast<std::size_t>(width));
  std::span<std::uint8_t> rest(bytes);
  auto weights = at::ones({rows});
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t window = windows[static_cast<std::size_t>(row)];
    if (window < 0) {
      weights[row] = 0;
    } else {
      text_.read(split_.validation_begin(window), rest.first(static_cast<std::size_t>(width)));
    }
    rest = rest.subspan(static_cast<std::size_t>(width));
  }
  return to_batch(bytes, rows, width, std::move(weights));
}

double TokenWindows::validation_unigram_nats() const {
  ByteHistogram histogram;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(split_.window_bytes()));
  for (std::int64_t window = 0; window < split_.validation_windows(); ++window) {
    text_.read(split_.validation_begin(window), bytes);
    histogram.add(bytes);
  }
  return histogram.entropy_nats();
}

}  // namespace convoy::data
