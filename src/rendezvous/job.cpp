// A rank's place in its job.
#include "convoy/rendezvous/job.h"

namespace convoy {

Job::Job(RankInfo info, std::string run_id, std::int64_t generation,
         std::shared_ptr<Session> session)
    : info_(info),
      run_id_(std::move(run_id)),
      generation_(generation),
      session_(std::move(session)) {}

}  // namespace convoy
