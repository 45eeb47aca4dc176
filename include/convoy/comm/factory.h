// Makes the communicator of a job.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/rendezvous/job.h"

namespace convoy {

/// The group of all ranks of `job`. Collective: every rank calls it with the same options.
/// Errors: kTimeout naming the ranks that did not come, kMismatch (version, world size, options),
/// kMemory, kSystem.
CommunicatorPtr make_communicator(const Job& job, CommunicatorOptions options = {});

}  // namespace convoy
