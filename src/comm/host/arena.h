// The allocations of a group inside its segment: who gets which range, and which tensor lies where.
#pragma once

#include "comm/host/host_group.h"
#include "comm/host/segment.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace convoy {

/// Where an allocation goes. All ranks compute the same, because they allocate the same in the same
/// order.
struct ArenaPlan {
  std::uint64_t chunk_offset = 0;  ///< Of the chunk in the segment.
  std::uint64_t pitch = 0;         ///< Distance of the ranks' parts; 0 when they share one.
  std::uint64_t chunk_bytes = 0;   ///< Of all ranks together.
  std::uint64_t inner = 0;         ///< Of the allocation in the part.
  std::uint64_t bytes = 0;         ///< Of one rank's allocation, a multiple of 64.
  bool is_new = false;             ///< The chunk has to be reserved and mapped first.
};

/// The chunks of one communicator. Chunks are only ever added; small allocations share one. Pages
/// are zero when they are handed out, because each is handed out once. Thread rule: its owner's
/// lock.
class Arena {
 public:
  Arena(const HostGroup& group, Segment segment, std::shared_ptr<MappingCache> cache);

  /// Decides, changes nothing.
  ArenaPlan plan(std::int64_t bytes, bool shared) const;
  /// Maps a new chunk and reserves this rank's share of it. Returns 0 or errno.
  int prepare(const ArenaPlan& plan) noexcept;
  /// Makes the plan final: every rank has prepared it.
  void commit(const ArenaPlan& plan, bool shared);
  /// Gives back what prepare() took: some rank could not.
  void undo(const ArenaPlan& plan) noexcept;

  /// This rank's memory of a committed plan, and who keeps it mapped.
  std::byte* data(const ArenaPlan& plan) const;
  std::shared_ptr<Mapping> mapping(const ArenaPlan& plan) const;

  /// The offset in the segment of bytes that lie in a chunk, or kOnStage.
  std::uint64_t locate(const void* data, std::size_t bytes) const;
  /// The address of bytes that a peer has located. Error: kProtocol if they are in no chunk.
  std::byte* address(std::uint64_t offset, std::size_t bytes) const;

  /// Bytes reserved for chunks so far, on all ranks together.
  std::uint64_t reserved_bytes() const noexcept { return reserved_bytes_; }

 private:
  struct Room {  ///< The chunk that small allocations go into.
    ArenaPlan chunk;
    std::uint64_t used = 0;
  };
  std::uint64_t share_begin(const ArenaPlan& plan, int rank) const;

  const HostGroup& group_;
  Segment segment_;
  std::shared_ptr<MappingCache> cache_;
  std::uint64_t next_offset_;
  std::uint64_t reserved_bytes_ = 0;
  Room own_room_;
  Room shared_room_;
  std::shared_ptr<Mapping> prepared_;
  std::map<std::uint64_t, std::shared_ptr<Mapping>> by_offset_;
  std::map<const std::byte*, std::uint64_t> by_address_;
};

}  // namespace convoy
