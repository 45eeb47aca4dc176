// How bytes travel, and direct moves between buffers in the arena.
#include "comm/host/moves.h"

#include <algorithm>
#include <vector>

namespace convoy {
namespace {

// Up to this many bytes a copy to the stage costs less than the second meeting that a direct move
// needs before the buffers are the caller's again.
constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;

bool is_staged_at(const HostGroup& group, const Operation& op, int rank) {
  return group.record(rank, op.sequence()).header.location == kOnStage;
}

bool is_staged_anywhere(const HostGroup& group, const Operation& op) {
  for (int r = 0; r < group.size(); ++r) {
    if (is_staged_at(group, op, r)) return true;
  }
  return false;
}

StoreMode store_mode(std::int64_t bytes) {
  constexpr std::int64_t kStreamFrom = std::int64_t{8} << 20;
  return bytes >= kStreamFrom ? StoreMode::kStreaming : StoreMode::kThroughCache;
}

void all_reduce_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  // Slices begin at cache lines of the buffer, so that no two ranks write one line.
  const auto per_line = 64 / op.element_bytes();
  const auto lines = (op.header.count + per_line - 1) / per_line;
  const auto cut = [&](int r) {
    return std::min(op.header.count, lines * r / group.size() * per_line);
  };
  const auto begin = cut(group.rank());
  const auto count = cut(group.rank() + 1) - begin;
  if (count == 0) return;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  const auto bytes = op.header.count * op.element_bytes();
  for (int r = 0; r < group.size(); ++r) {
    auto* buffer = arena.address(group.record(r, op.sequence()).header.location,
                                 static_cast<std::size_t>(bytes)) +
                   begin * op.element_bytes();
    sources.push_back(buffer);
    // Ranks may have passed the same shared memory.
    if (std::find(targets.begin(), targets.end(), buffer) == targets.end()) {
      targets.push_back(buffer);
    }
  }
  reduce({op.dtype(), op.reduce, sources, targets, count, store_mode(bytes)});
  op.copied_bytes += targets.size() * static_cast<std::uint64_t>(count * op.element_bytes());
}

void reduce_scatter_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  const auto count = op.header.count / group.size();
  const auto bytes = count * op.element_bytes();
  std::vector<const std::byte*> sources;
  for (int r = 0; r < group.size(); ++r) {
    sources.push_back(arena.address(group.record(r, op.sequence()).header.location,
                                    static_cast<std::size_t>(bytes * group.size())) +
                      group.rank() * bytes);
  }
  std::byte* const target = bytes_of(op.outputs.front());
  reduce({op.dtype(), op.reduce, sources, {&target, 1}, count, store_mode(bytes)});
  op.copied_bytes += static_cast<std::uint64_t>(bytes);
}

void all_gather_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  for (int r = 0; r < group.size(); ++r) {
    const auto& output = op.outputs[static_cast<std::size_t>(r)];
    const auto bytes = static_cast<std::int64_t>(output.nbytes());
    if (bytes == 0) continue;
    const auto* source = arena.address(group.record(r, op.sequence()).header.location,
                                       static_cast<std::size_t>(bytes));
    copy_counted(op, bytes_of(output), source, bytes, store_mode(bytes));
  }
}

void broadcast_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  if (group.rank() == op.header.root) return;
  const auto bytes = static_cast<std::int64_t>(op.input.nbytes());
  const auto* source = arena.address(group.record(op.header.root, op.sequence()).header.location,
                                     static_cast<std::size_t>(bytes));
  copy_counted(op, bytes_of(op.input), source, bytes, store_mode(bytes));
}

}  // namespace

void copy_counted(Operation& op, std::byte* target, const std::byte* source, std::int64_t bytes,
                  StoreMode store) {
  if (bytes <= 0 || target == source) return;
  copy_bytes(target, source, static_cast<std::size_t>(bytes), store);
  op.copied_bytes += static_cast<std::uint64_t>(bytes);
}

OpRoute choose_route(const HostGroup& group, const Operation& op, bool is_matched) {
  if (op.kind() == OpKind::kAllocate) return OpRoute::kAllocate;
  if (op.kind() == OpKind::kBarrier || op.header.count == 0) return OpRoute::kNothing;
  if (op.header.count * op.element_bytes() <= kSmallBytes) return OpRoute::kStaged;
  if (op.kind() == OpKind::kBroadcast) {
    const bool is_root = group.rank() == op.header.root;
    if (!is_root && !is_matched) return OpRoute::kUnknown;
    const bool staged =
        is_root ? op.header.location == kOnStage : is_staged_at(group, op, op.header.root);
    return staged ? OpRoute::kStaged : OpRoute::kDirect;
  }
  if (op.header.location == kOnStage) return OpRoute::kStaged;
  if (!is_matched) return OpRoute::kUnknown;
  return is_staged_anywhere(group, op) ? OpRoute::kStaged : OpRoute::kDirect;
}

StagePlan plan_stage_of(const HostGroup& group, const Operation& op) {
  const auto chunk_bytes = group.layout().chunk_bytes;
  const auto bytes = op.header.count * op.element_bytes();
  switch (op.kind()) {
    case OpKind::kReduceScatter: return plan_stage(bytes / group.size(), group.size(), chunk_bytes);
    case OpKind::kAllGather: return plan_stage(op.largest_part, 1, chunk_bytes);
    default: return plan_stage(bytes, 1, chunk_bytes);
  }
}

void move_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  switch (op.kind()) {
    case OpKind::kAllReduce: return all_reduce_direct(group, arena, op);
    case OpKind::kReduceScatter: return reduce_scatter_direct(group, arena, op);
    case OpKind::kAllGather: return all_gather_direct(group, arena, op);
    case OpKind::kBroadcast: return broadcast_direct(group, arena, op);
    case OpKind::kBarrier:
    case OpKind::kAllocate: return;
  }
}

}  // namespace convoy
