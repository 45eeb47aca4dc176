// Fingerprints of operations: made by each rank and compared before bytes move.
#pragma once

#include "comm/host/control_page.h"
#include "convoy/comm/communicator.h"

#include <string>

namespace convoy {

/// The part that is the same for all kinds; the rest is set by the caller.
OpHeader make_header(const OpContext& context);

/// True if two ranks mean the same operation.
bool is_same_operation(const OpHeader& a, const OpHeader& b) noexcept;

/// "all_reduce #12 'bucket 3' (sum, Float, 2560 elements)".
std::string describe(const OpHeader& header);

}  // namespace convoy
