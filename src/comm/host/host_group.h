// The shared memory of one group of ranks: who is in it, its control page, stages and first error.
#pragma once

#include "comm/host/control_page.h"
#include "comm/host/segment.h"
#include "convoy/base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

/// Where things lie at the start of the segment. Pure; the same on all ranks.
struct GroupLayout {
  std::size_t control_bytes;  ///< Head and rank blocks.
  std::size_t stage_bytes;    ///< Of one rank.
  std::size_t chunk_bytes;    ///< Most that one rank puts on its stage at a time.
  std::size_t total_bytes;    ///< Where allocations begin.
};
GroupLayout layout_of_group(int size);

/// A rank's view of its group. Thread-safe: holds only what is shared or never changes.
class HostGroup {
 public:
  /// `base` maps the first layout.total_bytes of the segment.
  HostGroup(std::string name, int rank, int size, std::shared_ptr<Mapping> base);

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const GroupLayout& layout() const noexcept { return layout_; }

  RankBlock& block(int rank) const noexcept;
  RankBlock& own() const noexcept { return block(rank_); }
  OpRecord& record(int rank, std::uint64_t sequence) const noexcept {
    return block(rank).ring[sequence % kOpRing];
  }
  std::byte* stage(int rank) const noexcept;

  /// Tells the peers that a counter of this rank has moved.
  void wake_peers() const noexcept;
  /// Tells the other threads of this rank.
  void wake_own() const noexcept;

  /// Makes this rank present: pid, processors.
  void enter() const noexcept;
  /// Marks this rank as left and tells the peers.
  void leave(bool is_unwinding) const noexcept;
  bool has_left(int rank) const noexcept;
  /// Processors that the ranks of the group may use together.
  int processors() const noexcept;

  /// True once the group has failed. One load.
  bool has_failed() const noexcept;
  /// The first error: the same on every rank. Waits shortly while a peer is writing it.
  std::optional<Error> failure() const;
  /// Makes `error` the group's first error unless there is one, and wakes all ranks.
  void fail(const Error& error) const noexcept;

 private:
  ControlHead& head() const noexcept;

  std::string name_;
  int rank_;
  int size_;
  GroupLayout layout_;
  std::shared_ptr<Mapping> base_;
};

}  // namespace convoy
