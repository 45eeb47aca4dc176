// Tells the nodes of a graph that this thread has made since a moment from all others.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace convoy::recompute {

/// Whether this thread has made `node` since at::sequence_number::peek() was `first_sequence`.
/// Numbers count per thread, from 0: in a backward or forward that runs in a fresh thread every
/// older node of another thread would look new by its number alone. Not for accumulators, whose
/// number is UINT64_MAX.
inline bool made_here_since(const torch::autograd::Node& node, std::uint64_t first_sequence) {
  return node.sequence_nr() >= first_sequence &&
         node.thread_id() == at::RecordFunction::currentThreadId();
}

}  // namespace convoy::recompute
