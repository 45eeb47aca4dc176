// A page of memory shared by the launcher and its ranks, in which each rank says where it is.
#pragma once

#include "convoy/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace convoy {

/// Where a rank stands in its life, as it wrote it itself.
enum class RankPhase : std::uint32_t {
  kAbsent,   ///< Has not joined.
  kRunning,  ///< Has joined.
  kLeft,     ///< Has said goodbye. A rank that was killed stays kRunning.
};

/// What one rank last said of itself: a copy, consistent in itself.
struct RankMark {
  pid_t pid = 0;
  RankPhase phase = RankPhase::kAbsent;
  std::string operation;       ///< "all_reduce"; empty when it is in none. At most 31 bytes.
  std::uint64_t sequence = 0;  ///< Number of the operation in its communicator.
  std::string tag;             ///< Bucket, unit or call site. At most 63 bytes.
  std::int64_t since_ns = 0;   ///< When it was written: nanoseconds of the monotonic clock.
  std::uint64_t progress = 0;  ///< Counts marks; standing still means that the rank does.
};

/// "all_reduce #51 'layer3'", or "none": the last operation in a failure report.
std::string describe_operation(const RankMark& mark);

/// The page. It lies in an anonymous memory file that travels as a descriptor, so it leaves nothing
/// behind and stays readable after a rank's SIGKILL: each mark has two copies and a counter that
/// names the whole one, so a writer that dies half-way leaves the older mark.
/// Thread rule: any number of readers in any process; for each rank one thread of one process
/// writes.
class JobPage {
 public:
  /// A new page for `world_size` ranks. Errors: kMemory, kSystem.
  static JobPage create(int world_size);
  /// Maps a page received from another process; its size and seals are checked before it is
  /// touched. Errors: kProtocol, kSystem.
  static JobPage attach(Fd memory, int world_size);

  JobPage(JobPage&&) noexcept;
  JobPage& operator=(JobPage&&) noexcept;
  ~JobPage();

  /// The descriptor to hand to ranks.
  int fd() const noexcept { return memory_.get(); }
  int world_size() const noexcept { return world_size_; }

  /// What `rank` wrote last. Never waits for the writer.
  RankMark read(int rank) const;
  /// Writes `rank`'s mark, with time and progress counter set here. Long texts are cut.
  void write(int rank, RankPhase phase, std::string_view operation, std::uint64_t sequence,
             std::string_view tag) noexcept;

 private:
  struct Slot;
  JobPage(Fd memory, int world_size);
  Slot& slot(int rank) const noexcept;

  Fd memory_;
  int world_size_ = 0;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace convoy
