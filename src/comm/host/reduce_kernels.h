// Combining buffers of several ranks, element by element in rank order, into one or more targets.
#pragma once

#include "convoy/comm/types.h"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace convoy {

/// How stores reach the targets. Streaming goes past the caches: right for results that are larger
/// than they are and go where no source lies, because lines need not be read before they are
/// overwritten.
enum class StoreMode { kThroughCache, kStreaming };

/// What to combine. Sources are aligned to their element size, targets better so too; a target may
/// be one of the sources, otherwise they do not overlap.
struct ReduceJob {
  at::ScalarType dtype;
  ReduceOp op;
  std::span<const std::byte* const> sources;  ///< In rank order, at least one.
  std::span<std::byte* const> targets;        ///< Each gets the result.
  std::int64_t count;                         ///< Elements of each buffer.
  StoreMode store;
};

/// Numerics (docs/numerics.md): sums and averages of Half and BFloat16 in Float, all others in
/// their own type; added from the first source to the last; avg divides once by the number of
/// sources; the result is rounded once. Integers wrap. min and max hand on NaN. Bool: sum and max
/// are "or", min is "and". Error: kInternal for a type that was not checked before.
void reduce(const ReduceJob& job);

/// Copies past the caches or through them. The ranges do not overlap.
void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes, StoreMode store);

}  // namespace convoy
