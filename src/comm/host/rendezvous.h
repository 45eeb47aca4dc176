// How the ranks of a new communicator find each other and come to share one segment.
#pragma once

#include "comm/host/segment.h"
#include "convoy/base/deadline.h"
#include "convoy/base/log.h"
#include "convoy/comm/types.h"
#include "convoy/rendezvous/job.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

// Note [Rendezvous]
// Rank 0 makes the segment, listens on a socket with a random name and puts the name into the job's
// store. The others connect; both sides check the other's user. A peer says hello (version, job,
// rank, options), gets the segment's descriptor, maps it, marks itself present and says so. When
// all are present rank 0 removes the name and stops listening, and only then sends "go": nobody can
// meet an old listener in the next round. A peer that finds a name nobody listens on waits for the
// next. Any failure is sent to all who have come, who throw the same text; for those who have not,
// a letter lies in the store, which each takes out, so that the next round finds none.

/// What a rank comes out with: everybody is present.
struct Joined {
  Segment segment;
  std::shared_ptr<Mapping> base;  ///< The first layout_of_group(size).total_bytes.
};

/// Messages between rank 0 and a peer.
inline constexpr std::uint32_t kRendezvousMagic = 0x43764752;  // "CvGR"
inline constexpr std::uint32_t kRendezvousVersion = 1;

struct HelloMessage {
  std::uint32_t magic = kRendezvousMagic;
  std::uint32_t version = kRendezvousVersion;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int64_t generation = 0;
  std::uint64_t run_hash = 0;
  std::uint64_t name_hash = 0;
  std::int64_t timeout_ns = 0;
  std::int64_t warn_after_ns = 0;
  std::int64_t memory_limit = 0;
};

enum class ReplyType : std::uint32_t {
  kStatus,   ///< Who is missing, so that a peer can name them at its own time limit.
  kSegment,  ///< Comes with the descriptor.
  kGo,       ///< All are present.
  kFailure,  ///< From rank 0: throw this. From a peer: it could not map, or its time is up.
  kPresent,  ///< From a peer: mapped, and marked in the control page.
};

struct ReplyMessage {
  std::uint32_t magic = kRendezvousMagic;
  ReplyType type = ReplyType::kStatus;
  std::int32_t error_kind = 0;
  std::int32_t error_rank = -1;
  char text[2048] = {};
};

ReplyMessage make_failure(const Error& error);
Error to_error(const ReplyMessage& message);

/// What every rank must say alike.
HelloMessage make_hello(const Job& job, const CommunicatorOptions& options);
/// Empty if the two agree, else what differs, for example "world size 3 and not 4".
std::string find_difference(const HelloMessage& theirs, const HelloMessage& ours);

/// The key under which rank 0 publishes its socket.
std::string rendezvous_key(const Job& job, const CommunicatorOptions& options);

/// Leaves a failure for a rank that has not come, and takes out the one left for this rank.
void leave_letter(const Job& job, const CommunicatorOptions& options, int rank,
                  const ReplyMessage& failure);
std::optional<ReplyMessage> take_letter(const Job& job, const CommunicatorOptions& options);

/// kTimeout: `missing` (for example "ranks 2 and 3") did not come. The same text on all ranks.
Error explain_missing(const CommunicatorOptions& options, const std::string& missing);

/// Errors of both: kTimeout naming the ranks that did not come, kMismatch, kMemory, kSystem, the
/// job's failure.
Joined rendezvous_as_first(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
                           const Logger& log, Deadline deadline);
Joined rendezvous_as_peer(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
                          Deadline deadline);

}  // namespace convoy
