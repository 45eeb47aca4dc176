// Runs the ranks of a job as threads of this process, through the same code as processes.
#pragma once

#include "convoy/comm/factory.h"

#include <functional>

namespace convoy {

/// What the function of one rank gets.
class Rank {
 public:
  Rank(Job job, CommunicatorPtr comm) : job_(std::move(job)), comm_(std::move(comm)) {}
  int rank() const noexcept { return comm_->rank(); }
  int size() const noexcept { return comm_->size(); }
  const Job& job() const noexcept { return job_; }
  Communicator& comm() const noexcept { return *comm_; }
  const CommunicatorPtr& comm_ptr() const noexcept { return comm_; }

 private:
  Job job_;
  CommunicatorPtr comm_;
};

/// Runs `body` once for each rank 0..count-1, each in its own thread with its own communicator, and
/// returns when all have ended. An exception in one rank fails the group's communicators; the first
/// cause is rethrown here, not its consequences.
void run_ranks(int count, const std::function<void(Rank&)>& body, CommunicatorOptions options = {});

}  // namespace convoy
