// Who this process is in its job: rank, world size, and the session with the job's other ranks.
#pragma once

#include "convoy/control/session.h"

#include <cstdint>
#include <memory>
#include <string>

namespace convoy {

/// The place of one rank in its job.
struct RankInfo {
  int rank = 0;              ///< In the whole job.
  int world_size = 1;        ///< Ranks of the whole job.
  int local_rank = 0;        ///< On this host.
  int local_world_size = 1;  ///< Ranks on this host.
};

/// A rank's view of its job. A handle: copies share one session, which ends with the last of them.
/// Thread-safe.
class Job {
 public:
  Job(RankInfo info, std::string run_id, std::int64_t generation, std::shared_ptr<Session> session);

  /// From the environment that convoyrun sets; a world of 1 when none of it is there.
  /// Errors: kInvalidArgument listing what is missing or malformed when it is half there;
  /// kPeerLost when the control channel cannot be reached.
  static Job from_environment();
  /// A world of one rank with a store of its own.
  static Job alone();

  int rank() const noexcept { return info_.rank; }
  int world_size() const noexcept { return info_.world_size; }
  int local_rank() const noexcept { return info_.local_rank; }
  int local_world_size() const noexcept { return info_.local_world_size; }
  const RankInfo& info() const noexcept { return info_; }
  /// The same on all ranks of one launch, different between launches.
  const std::string& run_id() const noexcept { return run_id_; }
  /// Counts restarts of the same run; part of every key, so that lives cannot meet.
  std::int64_t generation() const noexcept { return generation_; }

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  std::shared_ptr<Store> store() const { return session_->store(); }

 private:
  RankInfo info_;
  std::string run_id_;
  std::int64_t generation_;
  std::shared_ptr<Session> session_;
};

}  // namespace convoy
