// Sessions of ranks that are threads of one process.
#pragma once

#include "convoy/control/session.h"

#include <memory>
#include <vector>

namespace convoy {

/// `count` sessions of one job, for ranks 0 to count-1. They share a store; the first failure that
/// any of them reports is the failure of all. A rank has left when its session is destroyed.
std::vector<std::shared_ptr<Session>> make_thread_sessions(int count);

}  // namespace convoy
