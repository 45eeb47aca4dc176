// How bytes travel, and direct moves between buffers in the arena.
#include "comm/host/moves.h"

#include <algorithm>
#include <span>
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

// Results from this size on go past the caches: they would push everything else out of them.
constexpr std::int64_t kStreamFrom = std::int64_t{8} << 20;

StoreMode store_mode(std::int64_t bytes) {
  return bytes >= kStreamFrom ? StoreMode::kStreaming : StoreMode::kThroughCache;
}

/// Combines elements `range` of the ranks' buffers `sources`, which begin at element 0, into the
/// targets, which begin at range.begin. This rank's values come from op.own where they lie there.
void reduce_range(const HostGroup& group, Operation& op, ElementRange range,
                  std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                  StoreMode store) {
  const auto item = op.element_bytes();
  const auto own_rank = static_cast<std::size_t>(group.rank());
  const auto run = [&](std::int64_t begin, std::int64_t end, const std::byte* own) {
    if (begin >= end) return;
    std::vector<const std::byte*> from(sources.begin(), sources.end());
    for (auto& source : from) source += begin * item;
    if (own != nullptr) from[own_rank] = own;
    std::vector<std::byte*> to(targets.begin(), targets.end());
    for (auto& target : to) target += (begin - range.begin) * item;
    reduce({op.dtype(), op.reduce, from, to, end - begin, store});
  };
  auto at = range.begin;
  for (const OwnPiece& piece : op.own) {
    run(at, piece.begin, nullptr);
    at = piece.begin + piece.values.numel();
    run(piece.begin, at, static_cast<const std::byte*>(piece.values.const_data_ptr()));
  }
  run(at, range.end, nullptr);
  op.copied_bytes += targets.size() * static_cast<std::uint64_t>(range.numel() * item);
}

void all_reduce_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  const auto slice =
      slice_of(OpKind::kAllReduce, op.header.count, op.element_bytes(), group.rank(), group.size());
  if (slice.empty()) return;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  const auto bytes = op.header.count * op.element_bytes();
  for (int r = 0; r < group.size(); ++r) {
    auto* buffer = arena.address(group.record(r, op.sequence()).header.location,
                                 static_cast<std::size_t>(bytes));
    sources.push_back(buffer);
    auto* target = buffer + slice.begin * op.element_bytes();
    // Ranks may have passed the same shared memory.
    if (std::find(targets.begin(), targets.end(), target) == targets.end()) {
      targets.push_back(target);
    }
  }
  // Targets are sources (but for own values that stay elsewhere), so their lines are in the caches:
  // streaming would throw them out first.
  reduce_range(group, op, slice, sources, targets, StoreMode::kThroughCache);
}

void reduce_scatter_direct(const HostGroup& group, const Arena& arena, Operation& op) {
  const auto slice = slice_of(OpKind::kReduceScatter, op.header.count, op.element_bytes(),
                              group.rank(), group.size());
  const auto bytes = op.header.count * op.element_bytes();
  std::vector<const std::byte*> sources;
  for (int r = 0; r < group.size(); ++r) {
    sources.push_back(arena.address(group.record(r, op.sequence()).header.location,
                                    static_cast<std::size_t>(bytes)));
  }
  std::byte* const target = bytes_of(op.outputs.front());
  reduce_range(group, op, slice, sources, {&target, 1}, store_mode(bytes / group.size()));
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

ElementRange slice_of(OpKind kind, std::int64_t count, std::int64_t element_bytes, int rank,
                      int size) {
  if (kind == OpKind::kReduceScatter) return {rank * (count / size), (rank + 1) * (count / size)};
  if (kind != OpKind::kAllReduce) return {};
  const auto per_line = std::max<std::int64_t>(64 / element_bytes, 1);
  const auto lines = (count + per_line - 1) / per_line;
  const auto cut = [&](int r) { return std::min(count, lines * r / size * per_line); };
  return {cut(rank), cut(rank + 1)};
}

void put_own_values_in(Operation& op) {
  for (const OwnPiece& piece : op.own) {
    copy_counted(op, bytes_of(op.input) + piece.begin * op.element_bytes(),
                 static_cast<const std::byte*>(piece.values.const_data_ptr()),
                 static_cast<std::int64_t>(piece.values.nbytes()), StoreMode::kThroughCache);
  }
  op.own.clear();
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
