// The session of a rank that is a process.
#include "convoy/control/control_client.h"

#include "control/client_store.h"
#include "control/control_link.h"
#include "control/handshake.h"
#include "control/membership.h"
#include "control/wait_text.h"
#include "convoy/base/check.h"

#include <exception>
#include <mutex>
#include <utility>

#include <unistd.h>

namespace convoy {
namespace {

class ControlSession final : public Session {
 public:
  ControlSession(Admission admission, const ControlClientOptions& options)
      : rank_(options.rank),
        owner_(::getpid()),
        page_(std::move(*admission.page)),
        link_(std::make_shared<ControlLink>(std::move(admission.channel), options.world_size,
                                            options.answer_timeout)),
        store_(make_client_store(link_, options.generation)) {
    write_mark(RankPhase::kRunning, {}, 0, {});
  }

  ~ControlSession() override {
    if (::getpid() != owner_) return;  // A forked child must not speak for its parent.
    // The last operation stays: a rank that failed by an exception leaves before that is reported.
    const auto last = page_.read(rank_);
    write_mark(RankPhase::kLeft, last.operation, last.sequence, last.tag);
    link_->close(/*is_unwinding=*/std::uncaught_exceptions() > 0);
  }

  std::shared_ptr<Store> store() override { return store_; }

  void report_failure(const Error& error) noexcept override {
    try {
      const FailureReport report{rank_, error.rank(), error.kind(), error.what()};
      link_->post(FrameType::kReport, ReportMessage{report}.encode());
    } catch (const std::exception&) {
      // Without memory for a message this rank can only end, which the others learn as well.
    }
  }

  std::optional<Error> failure() const override { return link_->failure().get(); }

  std::shared_ptr<void> on_failure(std::function<void()> notify) override {
    return link_->failure().subscribe(std::move(notify));
  }

  std::vector<int> left_ranks() const override { return link_->left_ranks(); }

  void finish(Deadline deadline) override {
    const auto limit = deadline.remaining();
    const auto reply = link_->call_waiting(FrameType::kFinish, {}, deadline);
    if (reply.status != ReplyStatus::kUnfulfilled) return;
    const auto& ranks = reply.unfulfilled.not_finished;
    const auto late = name_ranks({ranks.begin(), ranks.end()});
    if (const auto failure = this->failure(); failure && !deadline.expired()) {
      throw wait_failed(*failure, concat(late, " to finish"));
    }
    throw Error(ErrorKind::kTimeout,
                concat("shutdown: ", late, ranks.size() == 1 ? " is" : " are", " not done after ",
                       name_wait(limit)),
                ranks.size() == 1 ? static_cast<int>(ranks.front()) : -1);
  }

  void mark_operation(std::string_view operation, std::uint64_t sequence,
                      std::string_view tag) noexcept override {
    if (::getpid() == owner_) write_mark(RankPhase::kRunning, operation, sequence, tag);
  }

 private:
  void write_mark(RankPhase phase, std::string_view operation, std::uint64_t sequence,
                  std::string_view tag) noexcept {
    const std::lock_guard lock(page_mutex_);  // The page wants one writer at a time.
    page_.write(rank_, phase, operation, sequence, tag);
  }

  int rank_;
  pid_t owner_;
  std::mutex page_mutex_;
  JobPage page_;
  std::shared_ptr<ControlLink> link_;
  std::shared_ptr<Store> store_;
};

}  // namespace

std::shared_ptr<Session> connect_session(const ControlClientOptions& options) {
  auto admission =
      shake_hands(options, ClientRole::kRank, Deadline::after(options.connect_timeout));
  return std::make_shared<ControlSession>(std::move(admission), options);
}

}  // namespace convoy
