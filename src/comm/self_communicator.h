// The group of one rank.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/control/session.h"

#include <memory>

namespace convoy {

/// A communicator whose operations are done when they return.
CommunicatorPtr make_self_communicator(CommunicatorOptions options,
                                       std::shared_ptr<Session> session);

}  // namespace convoy
