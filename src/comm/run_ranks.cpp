// Runs the ranks of a job as threads of this process.
#include "convoy/comm/run_ranks.h"

#include "comm/host/host_communicator.h"
#include "comm/self_communicator.h"
#include "convoy/base/check.h"
#include "convoy/base/exception_text.h"
#include "convoy/control/thread_sessions.h"

#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace convoy {

void run_ranks(int count, const std::function<void(Rank&)>& body, CommunicatorOptions options) {
  CONVOY_REQUIRE(count > 0, kInvalidArgument, "run_ranks: ", count, " ranks");
  auto sessions = make_thread_sessions(count);
  const auto cache = std::make_shared<MappingCache>();
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    const Job job({rank, count, rank, count}, "threads", 0,
                  std::move(sessions[static_cast<std::size_t>(rank)]));
    CommunicatorPtr comm;
    const auto fail = [&](std::string_view text) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      const Error cause(ErrorKind::kPeerLost, concat("rank ", rank, " failed: ", text), rank);
      if (comm) comm->abort(cause);
      job.session()->report_failure(cause);
    };
    try {
      comm = count == 1 ? make_self_communicator(options, job.session())
                        : make_host_communicator(job, options, cache);
      Rank self(job, comm);
      body(self);
    } catch (const std::exception& error) {
      fail(exception_text(error));
    } catch (...) {
      fail("an exception that is not a std::exception");
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < count; ++r) threads.emplace_back(run, r);
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace convoy
