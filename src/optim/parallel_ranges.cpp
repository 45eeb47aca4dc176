// Runs a function over parts of a range on torch's intra-op threads.
#include "optim/parallel_ranges.h"

#include "base/rounding.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace convoy::optim {
namespace {

/// Calls body(0) .. body(count - 1), each once, on torch's threads.
void run_on_threads(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  // One byte a task: the position of the byte a thread is given is the task.
  auto tasks = at::empty({count}, at::kByte);
  const auto* first = tasks.const_data_ptr<std::uint8_t>();
  auto iterator = at::TensorIterator::nullary_op(tasks);
  iterator.for_each(
      [&](char** data, const std::int64_t* strides, std::int64_t columns, std::int64_t rows) {
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto* byte = reinterpret_cast<const std::uint8_t*>(data[0] + row * strides[1]);
          for (std::int64_t i = 0; i < columns; ++i) body(byte - first + i);
        }
      },
      /*grain_size=*/1);
}

}  // namespace

void parallel_ranges(std::int64_t count, std::int64_t grain, std::int64_t alignment,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const auto wanted =
      std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, threads);
  const auto part = round_up((count + wanted - 1) / wanted, alignment);
  const auto parts = (count + part - 1) / part;
  if (parts == 1) {
    body(0, count);
    return;
  }
  run_on_threads(parts,
                 [&](std::int64_t task) { body(task * part, std::min(count, (task + 1) * part)); });
}

void parallel_pieces(std::span<const std::int64_t> lengths, std::int64_t grain,
                     std::int64_t alignment,
                     const std::function<void(std::size_t, std::int64_t, std::int64_t)>& body) {
  // Array i takes [starts[i], starts[i + 1]) of a line on which every array starts aligned.
  std::vector<std::int64_t> starts(lengths.size() + 1, 0);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    starts[i + 1] = starts[i] + round_up(lengths[i], alignment);
  }
  parallel_ranges(starts.back(), grain, alignment, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                      starts.begin() - 1);
    for (; i < lengths.size() && starts[i] < end; ++i) {
      const auto from = std::max<std::int64_t>(begin - starts[i], 0);
      const auto to = std::min(end - starts[i], lengths[i]);
      if (from < to) body(i, from, to);
    }
  });
}

}  // namespace convoy::optim
