// Runs a function over parts of a range on torch's intra-op threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace convoy::optim {

/// Elements below which a second thread costs more than it saves (torch's own figure).
inline constexpr std::int64_t kParallelGrain = 32768;

/// Calls body(begin, end) for disjoint parts that cover [0, count), at most at::get_num_threads()
/// of them and none (but the last) shorter than `grain`; cuts lie at multiples of `alignment`.
/// Returns when all are done; an exception of one is rethrown. With one part it runs in the caller.
///
/// Uses the thread pool inside libtorch through TensorIterator: at::parallel_for would have to be
/// compiled with the same OpenMP (or other) runtime as the libtorch at hand.
void parallel_ranges(std::int64_t count, std::int64_t grain, std::int64_t alignment,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

/// The same over several arrays laid end to end: body(array, begin, end) with positions in the
/// array. Cuts lie at multiples of `alignment` from each array's start.
void parallel_pieces(std::span<const std::int64_t> lengths, std::int64_t grain,
                     std::int64_t alignment,
                     const std::function<void(std::size_t, std::int64_t, std::int64_t)>& body);

}  // namespace convoy::optim
