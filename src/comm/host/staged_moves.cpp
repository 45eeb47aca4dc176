// Moves over the stages, one chunk at a time.
#include "comm/host/moves.h"

#include <algorithm>
#include <vector>

namespace convoy {
namespace {

void copy_cached(Operation& op, std::byte* target, const std::byte* source, std::int64_t bytes) {
  copy_counted(op, target, source, bytes, StoreMode::kThroughCache);
}

bool is_same_memory(const HostGroup& group, const Operation& op, int rank) {
  return op.header.location != kOnStage &&
         op.header.location == group.record(rank, op.sequence()).header.location;
}

// Bytes of `tensor` that fall into the chunk: ranks' parts may be shorter than the largest.
std::int64_t bytes_in_chunk(const Operation& op, const at::Tensor& tensor, std::int64_t chunk) {
  const auto left = static_cast<std::int64_t>(tensor.nbytes()) - op.stage.begin(chunk);
  return std::clamp<std::int64_t>(left, 0, op.stage.bytes(chunk));
}

// Where a rank's piece of the chunk lies. In reduce_scatter a chunk holds one piece for each rank.
const std::byte* piece(const HostGroup& group, const Operation& op, StageRange range,
                       std::int64_t chunk, int rank) {
  const auto inner = op.kind() == OpKind::kReduceScatter
                         ? static_cast<std::int64_t>(group.rank()) * op.stage.pitch(chunk)
                         : 0;
  return group.stage(rank) + range.begin % group.layout().stage_bytes + inner;
}

// Own values are read where they are; they went to the stage for the peers only.
void reduce_chunk(const HostGroup& group, Operation& op, std::int64_t chunk, StageRange range) {
  const auto begin = op.stage.begin(chunk);
  const auto bytes = op.stage.bytes(chunk);
  const auto own_part = op.kind() == OpKind::kReduceScatter
                            ? static_cast<std::int64_t>(group.rank()) * op.stage.part_bytes
                            : 0;
  std::vector<const std::byte*> sources;
  for (int r = 0; r < group.size(); ++r) {
    sources.push_back(r == group.rank() ? bytes_of(op.input) + own_part + begin
                                        : piece(group, op, range, chunk, r));
  }
  std::byte* const target = bytes_of(op.outputs.front()) + begin;
  reduce({op.dtype(),
          op.reduce,
          sources,
          {&target, 1},
          bytes / op.element_bytes(),
          StoreMode::kThroughCache});
  op.copied_bytes += static_cast<std::uint64_t>(bytes);
}

}  // namespace

void fill_stage(const HostGroup& group, Operation& op, std::int64_t chunk, StageRange range) {
  auto* stage = group.stage(group.rank()) + range.begin % group.layout().stage_bytes;
  const auto begin = op.stage.begin(chunk);
  switch (op.kind()) {
    case OpKind::kBroadcast:
      if (group.rank() != op.header.root) return;
      [[fallthrough]];
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
      copy_cached(op, stage, bytes_of(op.input) + begin, bytes_in_chunk(op, op.input, chunk));
      return;
    case OpKind::kReduceScatter:
      for (int r = 0; r < group.size(); ++r) {
        if (r == group.rank()) continue;
        copy_cached(op, stage + r * op.stage.pitch(chunk),
                    bytes_of(op.input) + r * op.stage.part_bytes + begin, op.stage.bytes(chunk));
      }
      return;
    case OpKind::kBarrier:
    case OpKind::kAllocate: return;
  }
}

void use_stage(const HostGroup& group, Operation& op, std::int64_t chunk, StageRange range) {
  const auto begin = op.stage.begin(chunk);
  switch (op.kind()) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter: return reduce_chunk(group, op, chunk, range);
    case OpKind::kAllGather:
      for (int r = 0; r < group.size(); ++r) {
        const auto& output = op.outputs[static_cast<std::size_t>(r)];
        const auto bytes = bytes_in_chunk(op, output, chunk);
        if (bytes == 0) continue;
        const auto* source =
            r == group.rank() ? bytes_of(op.input) + begin : piece(group, op, range, chunk, r);
        copy_cached(op, bytes_of(output) + begin, source, bytes);
      }
      return;
    case OpKind::kBroadcast:
      // What the ranks allocated as one memory has it already.
      if (group.rank() == op.header.root || is_same_memory(group, op, op.header.root)) return;
      copy_cached(op, bytes_of(op.input) + begin, piece(group, op, range, chunk, op.header.root),
                  op.stage.bytes(chunk));
      return;
    case OpKind::kBarrier:
    case OpKind::kAllocate: return;
  }
}

}  // namespace convoy
