// The texts of a group's failures: which rank, which operation, what to do.
#pragma once

#include "comm/host/arena.h"
#include "comm/host/control_page.h"
#include "comm/host/host_group.h"
#include "convoy/base/error.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

// The newest headers of peers are read here. A rank that waits in an operation may do that: see
// Progress::publish() for why they stay in place.

/// "rank 2 (pid 4711)".
std::string name_rank(const HostGroup& group, int rank);

/// "its last operation is all_reduce #50 'layer2' (...), entered 4.9 s ago", or that there is none.
std::string describe_last_operation(const HostGroup& group, int rank);

/// What the awaited ranks owe `op`: "rank 2 (pid 4711) has not entered it; its last operation ...".
std::string describe_awaited(const HostGroup& group, const OpHeader& op,
                             const std::vector<int>& awaited);

/// kMismatch: which ranks mean what by operation `sequence`, and who has not entered it.
Error explain_mismatch(const HostGroup& group, std::uint64_t sequence);

/// kTimeout of `op` after `waited`.
Error explain_timeout(const HostGroup& group, const OpHeader& op, const std::vector<int>& awaited,
                      std::chrono::nanoseconds waited);

/// kPeerLost: `rank` `what` (for example "has ended") while `op` waits.
Error explain_lost(const HostGroup& group, int rank, const std::string& what, const OpHeader& op);

/// kMemory: rank `rank` could not reserve its share of an allocation. The same on all ranks.
Error explain_no_memory(const HostGroup& group, const OpHeader& op, const ArenaPlan& plan,
                        int rank);

}  // namespace convoy
