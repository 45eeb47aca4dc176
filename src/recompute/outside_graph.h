// Refuses a recomputed graph that reaches into the graph around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace convoy::recompute {

/// Throws kMisuse if a node behind `roots` was not made by this thread since `first_sequence` (its
/// count at the begin of the recomputation) and is no function of leaves alone: it captured a
/// tensor with a graph. Backward would run through that graph here, without what else comes from
/// around, and free what the outer backward needs.
void require_no_outside_graph(const std::vector<at::Tensor>& roots, std::uint64_t first_sequence);

}  // namespace convoy::recompute
