// Puts the control server into the event loop.
#include "programs/convoyrun/job_control.h"

#include <algorithm>
#include <utility>

namespace convoy::launcher {

namespace {

ControlServerOptions server_options(const std::string& address, const std::string& run_id,
                                    int world_size) {
  ControlServerOptions options;
  options.address = address;
  options.world_size = world_size;
  options.run_id = run_id;
  return options;
}

ControlServerEvents server_events(JobControlEvents events) {
  ControlServerEvents server;
  server.on_hello = std::move(events.on_joined);
  server.on_report = std::move(events.on_report);
  server.on_refused = std::move(events.on_refused);
  return server;
}

}  // namespace

JobControl::JobControl(EventLoop& loop, const std::string& address, const std::string& run_id,
                       int world_size, JobControlEvents events)
    : loop_(loop),
      server_(server_options(address, run_id, world_size), server_events(std::move(events))) {
  loop_.add(server_.epoll_fd(), EPOLLIN, [this](std::uint32_t) { server_.process(); });
}

JobControl::~JobControl() { loop_.remove(server_.epoll_fd()); }

RankMark JobControl::rank_ended(int rank) {
  // What it said before its end is heard before its end.
  server_.process();
  exits_.push_back(rank);
  server_.mark_exited(rank);
  return server_.page().read(rank);
}

void JobControl::announce_failure(int rank, const std::string& text) {
  server_.abort(Error(ErrorKind::kPeerLost, text, rank));
}

int JobControl::abandoned_by(const std::vector<RankRecord>& ranks) {
  std::vector<std::uint64_t> progress;
  bool all_wait = !exits_.empty();
  const auto waiting = server_.waiting_ranks();
  for (const auto& rank : ranks) {
    progress.push_back(server_.page().read(rank.rank).progress);
    if (rank.is_running())
      all_wait &= std::binary_search(waiting.begin(), waiting.end(), rank.rank);
  }
  const bool has_moved = std::exchange(last_progress_, progress) != progress;
  return all_wait && !has_moved ? exits_.front() : -1;
}

}  // namespace convoy::launcher
