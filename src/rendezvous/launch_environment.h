// What the launcher's environment variables say about this process's job. Pure.
#pragma once

#include "convoy/base/env.h"
#include "convoy/control/control_client.h"
#include "convoy/rendezvous/job.h"

#include <optional>

namespace convoy {

/// The place that a launcher gave this process.
struct LaunchEnvironment {
  RankInfo info;
  ControlClientOptions control;
};

/// Nothing when no launcher's variable is set. Error: kInvalidArgument, one text that lists all
/// that is malformed, missing or contradictory.
std::optional<LaunchEnvironment> launch_environment(const Environment& env);

}  // namespace convoy
