// Sessions of ranks that are threads: one hub, seen by each rank through a session of its own.
#include "convoy/control/thread_sessions.h"

#include "control/failure_latch.h"
#include "control/membership.h"
#include "control/memory_store.h"
#include "control/wait_text.h"
#include "convoy/base/check.h"
#include "convoy/control/failure_report.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace convoy {
namespace {

class ThreadHub {
 public:
  explicit ThreadHub(int count) : store_(std::make_shared<MemoryStore>()), membership_(count) {
    for (int rank = 0; rank < count; ++rank) membership_.join(rank, 0);
  }

  const std::shared_ptr<MemoryStore>& store() const noexcept { return store_; }
  FailureLatch& failure() noexcept { return failure_; }

  void fail(const Error& error) {
    failure_.set(error);
    store_->fail_waits(*failure_.get());
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    membership_.leave(rank, /*may_report=*/false);
    changed_.notify_all();
  }

  std::vector<int> left_ranks() const {
    const std::lock_guard lock(mutex_);
    return membership_.gone();
  }

  void finish(int rank, Deadline deadline) {
    const auto limit = deadline.remaining();
    std::unique_lock lock(mutex_);
    membership_.finish(rank);
    changed_.notify_all();
    for (;;) {
      const auto unfinished = membership_.unfinished();
      if (unfinished.empty()) return;
      const auto late = name_ranks(unfinished);
      if (const auto failure = failure_.get()) {
        throw wait_failed(*failure, concat(late, " to finish"));
      }
      CONVOY_REQUIRE(!deadline.expired(), kTimeout, "shutdown: ", late,
                     unfinished.size() == 1 ? " is" : " are", " not done after ", name_wait(limit));
      changed_.wait_until(lock, deadline.point());
    }
  }

 private:
  std::shared_ptr<MemoryStore> store_;
  FailureLatch failure_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Membership membership_;
};

class ThreadSession final : public Session {
 public:
  ThreadSession(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadSession() override { hub_->leave(rank_); }

  std::shared_ptr<Store> store() override { return hub_->store(); }
  void report_failure(const Error& error) noexcept override {
    try {
      hub_->fail(as_seen_by_peers({rank_, error.rank(), error.kind(), error.what()}));
    } catch (const std::exception&) {
      // No memory for the text; the rank's own exception still ends it.
    }
  }
  std::optional<Error> failure() const override { return hub_->failure().get(); }
  std::shared_ptr<void> on_failure(std::function<void()> notify) override {
    return hub_->failure().subscribe(std::move(notify));
  }
  std::vector<int> left_ranks() const override { return hub_->left_ranks(); }
  void finish(Deadline deadline) override { hub_->finish(rank_, deadline); }
  // Marks are for a launcher that outlives the rank; here they would die with it.
  void mark_operation(std::string_view, std::uint64_t, std::string_view) noexcept override {}

 private:
  std::shared_ptr<ThreadHub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Session>> make_thread_sessions(int count) {
  CONVOY_REQUIRE(count > 0, kInvalidArgument, "a world of ", count, " ranks");
  const auto hub = std::make_shared<ThreadHub>(count);
  std::vector<std::shared_ptr<Session>> sessions;
  sessions.reserve(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    sessions.push_back(std::make_shared<ThreadSession>(hub, rank));
  }
  return sessions;
}

}  // namespace convoy
