// The store of a process: its operations as requests to the control server.
#pragma once

#include "control/control_link.h"
#include "convoy/control/store.h"

#include <memory>
#include <string>

namespace convoy {

/// Every key is sent as "g<generation>/<key>"; texts name keys as the caller knows them.
/// Usable as long as the link; afterwards its methods throw kMisuse.
std::shared_ptr<Store> make_client_store(std::shared_ptr<ControlLink> link,
                                         std::int64_t generation);

/// What a blocking request that was ended early has to say: "; rank 2 has not joined the job".
std::string describe_membership(const Unfulfilled& unfulfilled);

}  // namespace convoy
