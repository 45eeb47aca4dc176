// The allocations of a group inside its segment.
#include "comm/host/arena.h"

#include "base/rounding.h"
#include "comm/host/memory_units.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace convoy {
namespace {

// Chunks are at least this large for each rank, so that small allocations share them.
constexpr std::uint64_t kLeastChunk = std::uint64_t{256} << 10;

// How far into its page each rank's part begins behind that of the rank before. Reductions read the
// parts side by side. AMD's first caches find lines by a hash of the address: where two parts begin
// at the same place of a page and their distance hashes to nothing (256 MiB, for example), they
// throw each other out, and a sum takes ten times as long.
std::uint64_t skew_of(int ranks) {
  const auto share = kPageBytes / static_cast<std::uint64_t>(ranks) / kLineBytes * kLineBytes;
  return std::max(share, kLineBytes);
}

}  // namespace

Arena::Arena(const HostGroup& group, Segment segment, std::shared_ptr<MappingCache> cache)
    : group_(group),
      segment_(std::move(segment)),
      cache_(std::move(cache)),
      next_offset_(group.layout().total_bytes) {}

ArenaPlan Arena::plan(std::int64_t bytes, bool shared) const {
  const auto size =
      round_up(std::max<std::uint64_t>(static_cast<std::uint64_t>(bytes), 1), kLineBytes);
  const auto& room = shared ? shared_room_ : own_room_;
  const auto part_bytes = shared ? room.chunk.chunk_bytes : room.chunk.pitch;
  if (part_bytes - room.used >= size) {
    ArenaPlan plan = room.chunk;
    plan.inner = room.used;
    plan.bytes = size;
    plan.is_new = false;
    return plan;
  }
  ArenaPlan plan;
  const auto part = round_up(std::max(size, kLeastChunk), kPageBytes);
  plan.pitch = shared ? 0 : part + skew_of(group_.size());
  plan.chunk_bytes =
      shared ? part : round_up(plan.pitch * static_cast<std::uint64_t>(group_.size()), kPageBytes);
  plan.chunk_offset =
      plan.chunk_bytes < kHugePageBytes ? next_offset_ : round_up(next_offset_, kHugePageBytes);
  plan.bytes = size;
  plan.is_new = true;
  return plan;
}

// Each rank reserves its own part, or its slice of a shared chunk: the work of zeroing pages and
// the charge for them are spread over the ranks. A huge page is for the rank in whose part it
// begins.
std::uint64_t Arena::share_begin(const ArenaPlan& plan, int rank) const {
  const auto index = static_cast<std::uint64_t>(rank);
  const auto begin = plan.pitch != 0
                         ? plan.pitch * index
                         : plan.chunk_bytes * index / static_cast<std::uint64_t>(group_.size());
  const auto unit = plan.chunk_bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  return std::min(round_up(begin, unit), plan.chunk_bytes);
}

int Arena::prepare(const ArenaPlan& plan) noexcept {
  if (!plan.is_new) return 0;
  const auto begin = share_begin(plan, group_.rank());
  const auto end = share_begin(plan, group_.rank() + 1);
  try {
    prepared_ = cache_->map(segment_.fd(), plan.chunk_offset, plan.chunk_bytes);
  } catch (const std::exception&) {
    return ENOMEM;
  }
  return segment_.reserve(plan.chunk_offset + begin, end - begin, prepared_->data() + begin);
}

void Arena::commit(const ArenaPlan& plan, bool shared) {
  auto& room = shared ? shared_room_ : own_room_;
  if (plan.is_new) {
    by_offset_[plan.chunk_offset] = prepared_;
    by_address_[prepared_->data()] = plan.chunk_offset;
    prepared_.reset();
    next_offset_ = plan.chunk_offset + plan.chunk_bytes;
    reserved_bytes_ += plan.chunk_bytes;
    // The chunk with more room left takes the next small allocations.
    const auto part_bytes = [&](const ArenaPlan& chunk) {
      return shared ? chunk.chunk_bytes : chunk.pitch;
    };
    if (part_bytes(plan) - plan.bytes < part_bytes(room.chunk) - room.used) return;
    room.chunk = plan;
  }
  room.used = plan.inner + plan.bytes;
}

void Arena::undo(const ArenaPlan& plan) noexcept {
  prepared_.reset();
  if (!plan.is_new) return;
  const auto begin = share_begin(plan, group_.rank());
  segment_.release(plan.chunk_offset + begin, share_begin(plan, group_.rank() + 1) - begin);
}

std::byte* Arena::data(const ArenaPlan& plan) const {
  return mapping(plan)->data() + plan.pitch * static_cast<std::uint64_t>(group_.rank()) +
         plan.inner;
}

std::shared_ptr<Mapping> Arena::mapping(const ArenaPlan& plan) const {
  return by_offset_.at(plan.chunk_offset);
}

std::uint64_t Arena::locate(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  auto found = by_address_.upper_bound(begin);
  if (found == by_address_.begin()) return kOnStage;
  --found;
  const auto inner = static_cast<std::uint64_t>(begin - found->first);
  const auto& mapping = by_offset_.at(found->second);
  return inner + bytes <= mapping->bytes() ? found->second + inner : kOnStage;
}

std::byte* Arena::address(std::uint64_t offset, std::size_t bytes) const {
  auto found = by_offset_.upper_bound(offset);
  CONVOY_REQUIRE(found != by_offset_.begin(), kProtocol, "a peer's buffer lies outside the arena");
  --found;
  const auto inner = offset - found->first;
  CONVOY_REQUIRE(inner + bytes <= found->second->bytes(), kProtocol,
                 "a peer's buffer lies outside the arena");
  return found->second->data() + inner;
}

}  // namespace convoy
