// A rank's place in its job.
#include "convoy/rendezvous/job.h"

#include "convoy/base/env.h"
#include "convoy/base/random_id.h"
#include "convoy/control/control_client.h"
#include "convoy/control/thread_sessions.h"
#include "rendezvous/launch_environment.h"

#include <utility>

namespace convoy {

Job::Job(RankInfo info, std::string run_id, std::int64_t generation,
         std::shared_ptr<Session> session)
    : info_(info),
      run_id_(std::move(run_id)),
      generation_(generation),
      session_(std::move(session)) {}

Job Job::from_environment() {
  const auto launch = launch_environment(read_environment());
  if (!launch) return alone();
  return Job(launch->info, launch->control.run_id, launch->control.generation,
             connect_session(launch->control));
}

Job Job::alone() { return Job(RankInfo{}, random_id("alone"), 0, make_thread_sessions(1).front()); }

}  // namespace convoy
