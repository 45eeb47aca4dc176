// The part of one parameter that this rank holds: what optimizers, clipping and checkpoints see.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

/// Slices of a parameter are cut only at multiples of this many elements counted from the
/// parameter's own first element (or at its end). So a parameter's elements fall into the same
/// fixed blocks of this size in every strategy and world, and no block lies on two ranks.
inline constexpr std::int64_t kShardAlignment = 32;

/// Elements [begin, begin + numel) of the flattened parameter `name`, held by this rank in `leaf`.
/// A value; the tensor is shared. In a replicated strategy begin is 0 and numel is all of it.
struct ShardSpan {
  std::string name;  ///< Original name in the model, for example "blocks.0.attn.weight".
  std::vector<std::int64_t> sizes;  ///< Shape of the whole parameter.
  std::int64_t begin = 0;
  std::int64_t numel = 0;  ///< 0 if this rank holds nothing of it.
  at::Tensor leaf;         ///< The parameter an optimizer steps; its .grad() has its shape.
  bool replicated = true;  ///< Every rank holds the same elements.
};

/// A tensor that every rank holds whole.
inline ShardSpan whole_span(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .sizes = tensor.sizes().vec(),
          .begin = 0,
          .numel = tensor.numel(),
          .leaf = tensor,
          .replicated = true};
}

}  // namespace convoy
