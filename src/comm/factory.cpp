// Makes the communicator of a job: of one rank, or over shared memory.
#include "convoy/comm/factory.h"

#include "comm/host/host_communicator.h"
#include "comm/self_communicator.h"
#include "convoy/base/check.h"
#include "convoy/base/env.h"

#include <utility>

namespace convoy {

CommunicatorPtr make_communicator(const Job& job, CommunicatorOptions options) {
  CONVOY_REQUIRE(options.timeout.count() > 0 && options.warn_after.count() > 0, kInvalidArgument,
                 "communicator '", options.name, "': timeout and warn_after must be above 0");
  // Where the program has left the default, the person who starts it may choose (CONVOY_TIMEOUT).
  if (options.timeout == CommunicatorOptions{}.timeout) {
    options.timeout = read_environment().timeout.value_or(options.timeout);
  }
  if (job.world_size() == 1) return make_self_communicator(std::move(options), job.session());
  return make_host_communicator(job, std::move(options), std::make_shared<MappingCache>());
}

}  // namespace convoy
