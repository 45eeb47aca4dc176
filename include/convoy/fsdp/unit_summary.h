// What one unit of a sharded model holds, in numbers.
#pragma once

#include <cstdint>
#include <string>

namespace convoy::fsdp {

/// Of a model that is wrapped, or of one that would be (plan_model).
struct UnitSummary {
  std::string name;  ///< Path in the model; "(root)"; "blocks.0..3" for a group of blocks; a unit
                     ///< that is partly frozen has a second line for its frozen part.
  std::int64_t parameters = 0;      ///< Tensors.
  std::int64_t numel = 0;           ///< Elements of them, without padding.
  std::int64_t padding_numel = 0;   ///< Elements that the equal slices cost.
  std::int64_t shard_bytes = 0;     ///< Parameters on this rank.
  std::int64_t full_bytes = 0;      ///< While it is full.
  std::int64_t resident_bytes = 0;  ///< Of its full buffer, in private memory, now.
  bool cut_at_rows = true;          ///< Slices keep their number of dimensions.
  bool trainable = true;
};

}  // namespace convoy::fsdp
