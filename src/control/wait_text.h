// The sentences about waits that ended without their keys: the same for every store. Pure.
#pragma once

#include "convoy/base/error.h"

#include <chrono>
#include <span>
#include <string>

namespace convoy {

/// "'a', 'b' and 3 more": the first of `count` keys.
std::string name_keys(std::span<const std::string> keys, std::size_t count);

/// kTimeout: "store: no key 'a' after 3.0 s<facts>". `limit` is the time limit, not the time it
/// took, so that ranks that wait for the same say the same.
Error keys_missing(std::span<const std::string> keys, std::size_t count,
                   std::chrono::nanoseconds limit, const std::string& facts);

/// The job's failure as the end of a wait: kind, rank and text of the failure, and what was waited
/// for.
Error wait_failed(const Error& failure, const std::string& waited_for);

/// "3.0 s" or "450 ms".
std::string name_wait(std::chrono::nanoseconds limit);

}  // namespace convoy
