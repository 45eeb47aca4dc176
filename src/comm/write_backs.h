// Puts results back into callers' tensors that did not lie in memory in order.
#pragma once

#include "convoy/comm/communicator.h"

#include <vector>

namespace convoy {

/// Does the copies and forgets them. Works on leaves that require gradients; their version counters
/// move, as for any in-place change.
void write_back(std::vector<WriteBack>& write_backs);

}  // namespace convoy
