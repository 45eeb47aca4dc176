// Connecting to the control server and being accepted by it.
#pragma once

#include "control/messages.h"
#include "convoy/control/channel.h"
#include "convoy/control/control_client.h"
#include "convoy/control/job_page.h"

#include <optional>

namespace convoy {

/// An accepted connection, and the job page that came with it (for a rank).
struct Admission {
  Channel channel;
  std::optional<JobPage> page;
};

/// Tries again when the server closes the connection unanswered, which it does to the oldest of too
/// many that wait. Errors as connect_session().
Admission shake_hands(const ControlClientOptions& options, ClientRole role, Deadline deadline);

}  // namespace convoy
