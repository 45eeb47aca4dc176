// Waiting for an operation.
#include "comm/host/waiting.h"

#include "comm/host/explain.h"
#include "comm/host/op_header.h"
#include "comm/host/wake_up.h"
#include "control/wait_text.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A sleep is never longer, so that ended peers are found in time.
constexpr auto kSlice = milliseconds(50);
// For the news of an exception to come from a rank over the launcher to this one.
constexpr auto kPatienceForCause = milliseconds(300);
// About what a sleep and a wake-up cost; only where every rank can have a processor to itself.
constexpr auto kSpin = microseconds(40);

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Waiting::Waiting(const HostGroup& group, Progress& progress, Liveness& liveness, Logger log,
                 const CommunicatorOptions& options)
    : group_(group),
      progress_(progress),
      liveness_(liveness),
      log_(std::move(log)),
      options_(options),
      spin_(group.processors() >= group.size() ? std::chrono::nanoseconds(kSpin)
                                               : std::chrono::nanoseconds::zero()) {}

OpState Waiting::wait(const Operation& op) {
  const auto begin = Clock::now();
  auto warning = options_.warn_after;
  auto next_warning = Deadline::after(warning);
  auto spin_until = begin + spin_;
  const auto is_over = [](const Advance& step) {
    return step.state == OpState::kDone || step.state == OpState::kFailed;
  };
  for (;;) {
    auto step = progress_.advance(&op);
    if (is_over(step)) return step.state;
    const auto now = Clock::now();
    if (step.has_moved) spin_until = now + spin_;
    if (now < spin_until) {
      pause_briefly();
      continue;
    }
    {
      Sleeper sleeper(group_.own());
      step = progress_.advance(&op);
      if (is_over(step)) return step.state;
      if (!step.has_moved) {
        sleeper.sleep(op.context.deadline.sooner(kSlice).remaining());
      }
    }
    look_after(op, begin, next_warning, warning);
  }
}

// What a peer did before it left counts, so the look at the flag comes before the look at its
// counters.
bool Waiting::has_left(const Operation& op) const {
  std::vector<int> left;
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank() && group_.has_left(r)) left.push_back(r);
  }
  if (left.empty()) return false;
  progress_.advance();
  const auto awaited = progress_.awaited_ranks(op);
  for (const int r : left) {
    if (std::find(awaited.begin(), awaited.end(), r) == awaited.end()) continue;
    const bool is_unwound = group_.block(r).state.load() == RankState::kUnwound;
    const auto since = std::chrono::nanoseconds(trace::now_ns() - group_.block(r).left_ns.load());
    // The job's failure, which says why, ends this wait if it comes.
    if (is_unwound && since < kPatienceForCause) continue;
    const char* how = is_unwound ? "has left the group (an exception unwound it)"
                                 : "has left the group (ended its communicator)";
    group_.fail(explain_lost(group_, r, how, op.header));
    return true;
  }
  return false;
}

void Waiting::look_after(const Operation& op, Clock::time_point begin, Deadline& next_warning,
                         std::chrono::nanoseconds& warning) {
  if (has_left(op)) return;
  if (const auto error = liveness_.look(op.header)) return group_.fail(*error);
  if (op.context.deadline.expired()) {
    progress_.advance();
    if (progress_.state(op) == OpState::kDone) return;
    return group_.fail(
        explain_timeout(group_, op.header, progress_.awaited_ranks(op),
                        std::chrono::nanoseconds(trace::now_ns() - op.header.entered_ns)));
  }
  if (next_warning.expired()) {
    log_.warn("communicator '", group_.name(), "': ", describe(op.header), " has waited for ",
              name_wait(Clock::now() - begin), ": ",
              describe_awaited(group_, op.header, progress_.awaited_ranks(op)));
    warning *= 2;
    next_warning = Deadline::after(warning);
  }
}

void Waiting::look_after_peers() {
  const auto op = progress_.oldest();
  if (op == nullptr) return;
  if (const auto error = liveness_.look(op->header)) group_.fail(*error);
}

void Waiting::drain(std::chrono::nanoseconds longest) {
  const auto patience = Deadline::after(longest);
  while (!patience.expired() && !group_.has_failed()) {
    progress_.advance();
    const auto op = progress_.oldest();
    if (op == nullptr) return;
    if (has_left(*op)) return;
    if (const auto error = liveness_.look(op->header)) return group_.fail(*error);
    Sleeper sleeper(group_.own());
    if (progress_.advance(op.get()).has_moved) continue;
    sleeper.sleep(patience.sooner(kSlice).remaining());
  }
}

}  // namespace convoy
