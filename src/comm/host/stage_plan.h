// Cuts operations into chunks and lays them on the stages: pure, and alike on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy {

/// One operation cut into chunks. A chunk holds `parts` pieces (one for each rank in a
/// reduce_scatter, else one), each of up to `piece_bytes`.
struct StagePlan {
  std::int64_t part_bytes = 0;   ///< Of a whole part: of the largest input of any rank.
  std::int64_t piece_bytes = 0;  ///< Most of a part in one chunk; a multiple of 64.
  int parts = 1;

  std::int64_t chunks() const { return (part_bytes + piece_bytes - 1) / piece_bytes; }
  std::int64_t begin(std::int64_t chunk) const { return chunk * piece_bytes; }
  /// Bytes of each piece of this chunk.
  std::int64_t bytes(std::int64_t chunk) const {
    const auto left = part_bytes - begin(chunk);
    return left < piece_bytes ? left : piece_bytes;
  }
  /// Distance of the pieces on the stage.
  std::int64_t pitch(std::int64_t chunk) const { return (bytes(chunk) + 63) / 64 * 64; }
  std::int64_t stage_bytes(std::int64_t chunk) const { return parts * pitch(chunk); }
};

/// Parts of `part_bytes`, in chunks of at most `chunk_bytes`. part_bytes > 0.
inline StagePlan plan_stage(std::int64_t part_bytes, int parts, std::size_t chunk_bytes) {
  StagePlan plan;
  plan.part_bytes = part_bytes;
  plan.parts = parts;
  plan.piece_bytes = static_cast<std::int64_t>(chunk_bytes) / parts / 64 * 64;
  if (plan.piece_bytes < 64) plan.piece_bytes = 64;
  return plan;
}

/// Where a chunk lies: positions count bytes for ever, the place on the stage is position modulo
/// its size. A chunk lies in one piece.
struct StageRange {
  std::uint64_t begin;
  std::uint64_t end;
};

/// The range of the next chunk after `position`. bytes <= stage_bytes.
inline StageRange next_range(std::uint64_t position, std::int64_t bytes, std::size_t stage_bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  if (position % stage_bytes + size > stage_bytes) {
    position = (position / stage_bytes + 1) * stage_bytes;
  }
  return {position, position + size};
}

}  // namespace convoy
