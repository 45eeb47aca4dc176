// The layout of the memory that the ranks of a group share to see each other's progress.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace convoy {

// Note [Who writes what]
// Every field belongs to one rank, which alone writes it; the others read. The exceptions are the
// first error (taken once by compare-exchange) and the bells (counters that anybody may ring).
// All counters only grow. A plain field is published by the atomic counter named beside it.
// Cross-process atomics must be lock-free; counters and the `sleeping` flag form a store-then-load
// pattern on both sides, so all of them use sequentially consistent order (see wake_up.h).

inline constexpr std::size_t kOpRing = 128;           ///< Operations in flight that peers can see.
inline constexpr std::size_t kTagBytes = 64;          ///< With the ending zero.
inline constexpr std::size_t kErrorTextBytes = 2048;  ///< With the ending zero.
inline constexpr int kMostRanks = 1024;

/// Where the bytes lie that peers read.
inline constexpr std::uint64_t kOnStage = ~std::uint64_t{0};  ///< They come through the stage.
inline constexpr std::uint64_t kNoBytes = kOnStage - 1;       ///< There are none.

/// What a rank says of one operation. The first group is compared between ranks.
struct OpHeader {
  std::uint64_t sequence = 0;
  std::uint8_t kind = 0;    ///< OpKind.
  std::uint8_t reduce = 0;  ///< ReduceOp of reductions.
  std::int8_t dtype = 0;    ///< at::ScalarType.
  std::uint8_t shared = 0;  ///< allocate: one region for all ranks.
  std::int32_t root = -1;   ///< broadcast.
  std::int64_t count =
      0;  ///< Elements of the whole: tensor, reduce_scatter input, gathered output.
  std::uint64_t counts_hash = 0;  ///< all_gather: of the ranks' own counts.
  std::uint64_t tag_hash = 0;     ///< Of the whole tag.
  std::array<char, kTagBytes> tag{};

  std::uint64_t location = kNoBytes;  ///< Offset in the segment, or one of the constants above.
  std::int64_t available = 0;         ///< allocate: bytes this rank could still reserve.
  std::int64_t entered_ns = 0;        ///< Monotonic time.
};

/// One entry of a rank's ring. `header` is published by RankBlock::entered.
struct alignas(64) OpRecord {
  OpHeader header;
  std::atomic<std::uint64_t>
      finished;          ///< Sequence whose part this rank has done; publishes `outcome`.
  std::int64_t outcome;  ///< allocate: 0 or errno.
  std::int64_t found;    ///< allocate: the limit that stood in the way, bytes.
};

enum class RankState : std::uint32_t {
  kAbsent,
  kPresent,
  kLeft,     ///< Ended its communicator.
  kUnwound,  ///< Ended it while an exception unwound its stack: the job may soon hear why.
};

/// One rank's part of the control page.
struct RankBlock {
  alignas(
      64) std::atomic<std::uint64_t> entered;  ///< Newest operation whose header is in the ring.
  std::atomic<std::uint64_t> completed;        ///< All operations up to this one are complete here.
  alignas(
      64) std::atomic<std::uint64_t> stage_filled;  ///< Position up to which the stage is filled.
  alignas(
      64) std::atomic<std::uint64_t> stage_used;  ///< Up to which this rank has read all stages.
  alignas(64)
      std::atomic<std::uint32_t> sleeping;  ///< Threads of this rank that sleep, or are about to.
  std::atomic<std::uint32_t> bell;          ///< The futex they sleep on.
  alignas(64) std::atomic<RankState> state;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> left_ns;  ///< When it left: monotonic time; published by state.
  std::array<std::atomic<std::uint64_t>, 16>
      cpus;  ///< Processors it may run on; published by state.
  std::array<OpRecord, kOpRing> ring;
};

/// The first error of the group: written once.
struct ErrorSlot {
  enum class State : std::uint32_t { kEmpty, kBeingWritten, kSet };
  std::atomic<State> state;
  std::int32_t kind;
  std::int32_t rank;
  std::array<char, kErrorTextBytes> text;
};

/// The head of the segment; `size` RankBlocks follow it.
struct alignas(64) ControlHead {
  ErrorSlot error;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(RankBlock) % 64 == 0 && sizeof(ControlHead) % 64 == 0);

}  // namespace convoy
