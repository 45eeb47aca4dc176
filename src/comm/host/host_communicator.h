// The communicator of ranks on one machine, over memory that they share.
#pragma once

#include "comm/host/segment.h"
#include "convoy/comm/communicator.h"
#include "convoy/rendezvous/job.h"

#include <memory>

namespace convoy {

/// Meets the other ranks of `job` and makes the group. Collective. Ranks that are threads of one
/// process share a `cache`, processes have one each. Errors: see make_communicator.
CommunicatorPtr make_host_communicator(const Job& job, CommunicatorOptions options,
                                       std::shared_ptr<MappingCache> cache);

}  // namespace convoy
