// Moves a rank's operations on, in steps that never wait.
#include "comm/host/progress.h"

#include "comm/host/explain.h"
#include "comm/host/moves.h"
#include "comm/host/op_header.h"
#include "comm/write_backs.h"
#include "convoy/base/check.h"
#include "convoy/base/exception_text.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace convoy {
namespace {

// The least of a counter over all ranks.
template <class Counter>
std::uint64_t least(const HostGroup& group, Counter RankBlock::*counter) {
  auto value = (group.block(0).*counter).load();
  for (int r = 1; r < group.size(); ++r) {
    value = std::min(value, (group.block(r).*counter).load());
  }
  return value;
}

}  // namespace

Progress::Progress(const HostGroup& group, Arena& arena, std::shared_ptr<trace::Sink> trace)
    : group_(group), arena_(arena), trace_(std::move(trace)) {}

OperationPtr Progress::start(Operation op) {
  auto started = std::make_shared<Operation>(std::move(op));
  {
    const std::lock_guard lock(mutex_);
    in_flight_.push_back(started);
  }
  advance();
  return started;
}

Advance Progress::advance(const Operation* awaited) noexcept {
  const std::lock_guard lock(mutex_);
  Advance result;
  if (!in_flight_.empty()) {
    try {
      result.has_moved = !group_.has_failed() && advance_all();
    } catch (const Error& error) {
      group_.fail(error);
    } catch (const std::exception& error) {
      group_.fail(Error(ErrorKind::kSystem,
                        concat("communicator '", group_.name(), "', rank ", group_.rank(), ": ",
                               exception_text(error)),
                        group_.rank()));
    }
    if (group_.has_failed()) fail_all();
  }
  if (awaited != nullptr) result.state = awaited->state;
  return result;
}

bool Progress::advance_all() {
  bool moved = publish();
  moved |= match();
  moved |= choose_routes();
  moved |= fill_stages();
  moved |= move_direct_ones();
  moved |= use_stages();
  moved |= finish_direct_ones();
  moved |= retire();
  return moved;
}

// A header stays in the ring until every rank has completed the operation after it, so peers that
// wait in an operation can still read it for an error text.
bool Progress::publish() {
  if (published_ == retired_ + in_flight_.size()) return false;
  const auto last =
      std::min(least(group_, &RankBlock::completed) + kOpRing - 1, retired_ + in_flight_.size());
  if (last <= published_) return false;
  while (published_ < last) {
    ++published_;
    auto& op = *in_flight_[published_ - retired_ - 1];
    CONVOY_CHECK(op.sequence() == published_);
    group_.record(group_.rank(), published_).header = op.header;
    op.enter(OpState::kEntered);
  }
  group_.own().entered.store(published_);
  group_.wake_peers();
  return true;
}

bool Progress::match() {
  if (matched_ == published_) return false;
  const auto before = matched_;
  std::uint64_t all_entered = published_;
  for (int r = 0; r < group_.size(); ++r) {
    const auto entered = group_.block(r).entered.load();
    // A disagreement is found with the first peer that has come, not the last.
    const auto last = std::min(entered, published_);
    for (auto sequence = matched_ + 1; sequence <= last; ++sequence) {
      if (is_same_operation(group_.record(r, sequence).header,
                            in_flight_[sequence - retired_ - 1]->header)) {
        continue;
      }
      // Shortly wait for the others, so that the text can say what each rank does.
      const auto patience = Deadline::after(std::chrono::milliseconds(50));
      while (least(group_, &RankBlock::entered) < sequence && !patience.expired()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      throw explain_mismatch(group_, sequence);
    }
    all_entered = std::min(all_entered, entered);
  }
  while (matched_ < all_entered) {
    ++matched_;
    in_flight_[matched_ - retired_ - 1]->enter(OpState::kMatched);
  }
  return matched_ != before;
}

bool Progress::choose_routes() {
  const auto before = routed_;
  while (routed_ < published_) {
    const auto& op = in_flight_[routed_ - retired_];
    op->route = choose_route(group_, *op, op->state == OpState::kMatched);
    if (op->route == OpRoute::kUnknown) break;
    ++routed_;
    if (op->route == OpRoute::kStaged) {
      put_own_values_in(*op);
      op->stage = plan_stage_of(group_, *op);
      to_fill_.push_back(op);
      to_use_.push_back(op);
    } else {
      to_move_.push_back(op);
    }
  }
  return routed_ != before;
}

bool Progress::move_direct_ones() {
  bool moved = false;
  for (auto& op : to_move_) {
    if (op->state != OpState::kMatched) continue;
    moved = true;
    if (op->route == OpRoute::kNothing) {
      complete(*op);
      continue;
    }
    if (op->route == OpRoute::kAllocate) {
      prepare_allocate(*op);
    } else {
      move_direct(group_, arena_, *op);
    }
    op->enter(OpState::kMoved);
    group_.record(group_.rank(), op->sequence()).finished.store(op->sequence());
    group_.wake_peers();
    to_finish_.push_back(op);
  }
  std::erase_if(to_move_, [](const auto& op) { return op->state != OpState::kEntered; });
  return moved;
}

StageRange Progress::next_fill() const {
  const auto& op = *to_fill_.front();
  return next_range(fill_position_, op.stage.stage_bytes(op.filled_chunks),
                    group_.layout().stage_bytes);
}

StageRange Progress::next_use() const {
  const auto& op = *to_use_.front();
  return next_range(use_position_, op.stage.stage_bytes(op.used_chunks),
                    group_.layout().stage_bytes);
}

// Own bytes go on the stage before the peers have come, as long as there is room: peers that come
// later find them there.
bool Progress::fill_stages() {
  bool moved = false;
  while (!to_fill_.empty()) {
    auto& op = *to_fill_.front();
    const auto range = next_fill();
    if (least(group_, &RankBlock::stage_used) + group_.layout().stage_bytes < range.end) break;
    fill_stage(group_, op, op.filled_chunks, range);
    fill_position_ = range.end;
    group_.own().stage_filled.store(range.end);
    group_.wake_peers();
    moved = true;
    if (++op.filled_chunks == op.stage.chunks()) to_fill_.pop_front();
  }
  return moved;
}

bool Progress::use_stages() {
  bool moved = false;
  while (!to_use_.empty()) {
    auto& op = *to_use_.front();
    if (op.state != OpState::kMatched) break;
    const auto range = next_use();
    if (least(group_, &RankBlock::stage_filled) < range.end) break;
    use_stage(group_, op, op.used_chunks, range);
    use_position_ = range.end;
    group_.own().stage_used.store(range.end);
    group_.wake_peers();
    moved = true;
    if (++op.used_chunks == op.stage.chunks()) {
      complete(op);
      to_use_.pop_front();
    }
    // The room that this made lets long operations go on without another round.
    fill_stages();
  }
  return moved;
}

bool Progress::all_finished(const Operation& op) const {
  for (int r = 0; r < group_.size(); ++r) {
    if (group_.record(r, op.sequence()).finished.load() != op.sequence()) return false;
  }
  return true;
}

bool Progress::finish_direct_ones() {
  bool moved = false;
  for (auto& op : to_finish_) {
    if (!all_finished(*op)) continue;
    if (op->route == OpRoute::kAllocate) finish_allocate(*op);
    complete(*op);
    moved = true;
  }
  std::erase_if(to_finish_, [](const auto& op) { return op->state == OpState::kDone; });
  return moved;
}

void Progress::prepare_allocate(Operation& op) {
  auto available = op.header.available;
  for (int r = 0; r < group_.size(); ++r) {
    available = std::min(available, group_.record(r, op.sequence()).header.available);
  }
  auto& record = group_.record(group_.rank(), op.sequence());
  // Asking the kernel for more than a memory cgroup holds ends in its OOM killer, not in an error.
  const bool fits = std::cmp_less_equal(op.arena_plan->chunk_bytes, available);
  record.outcome = !op.arena_plan->is_new || fits ? arena_.prepare(*op.arena_plan) : ENOMEM;
  record.found = record.outcome == EFBIG ? file_size_limit() : available;
}

// All ranks decide from the same records, so all get the memory, or all get the same error.
void Progress::finish_allocate(Operation& op) {
  const bool shared = op.header.shared != 0;
  for (int r = 0; r < group_.size(); ++r) {
    const auto& record = group_.record(r, op.sequence());
    if (record.outcome == 0) continue;
    arena_.undo(*op.arena_plan);
    op.error = explain_no_memory(group_, op.header, *op.arena_plan, r);
    return;
  }
  arena_.commit(*op.arena_plan, shared);
}

void Progress::complete(Operation& op) {
  for (const auto& item : op.context.write_backs) op.copied_bytes += item.source.nbytes();
  write_back(op.context.write_backs);
  auto& stats = stats_[op.kind()];
  ++stats.calls;
  stats.payload_bytes += static_cast<std::uint64_t>(op.payload_bytes());
  stats.copied_bytes += op.copied_bytes;
  if (trace_ != nullptr) {
    trace_->record({std::string(to_string(op.kind())), op.context.tag, "comm", op.header.entered_ns,
                    trace::now_ns(), op.payload_bytes()});
  }
  op.enter(OpState::kDone);
  op.release();
  group_.wake_own();
}

// Done operations leave at the front; peers that lack room in the ring hear of it.
bool Progress::retire() {
  const auto before = retired_;
  while (!in_flight_.empty() && in_flight_.front()->state == OpState::kDone) {
    in_flight_.pop_front();
    ++retired_;
  }
  if (retired_ == before) return false;
  group_.own().completed.store(retired_);
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank() || group_.block(r).entered.load() < before + kOpRing - 1) continue;
    group_.wake_peers();
    break;
  }
  return true;
}

void Progress::fail_all() noexcept {
  for (auto& op : in_flight_) {
    if (!op->is_over()) op->state = OpState::kFailed;
    op->release();
  }
  in_flight_.clear();
  to_move_.clear();
  to_finish_.clear();
  to_fill_.clear();
  to_use_.clear();
  group_.wake_own();
}

OpState Progress::state(const Operation& op) const {
  const std::lock_guard lock(mutex_);
  return op.state;
}

std::optional<Error> Progress::error(const Operation& op) const {
  const std::lock_guard lock(mutex_);
  return op.error;
}

bool Progress::is_idle() const {
  const std::lock_guard lock(mutex_);
  return in_flight_.empty();
}

OperationPtr Progress::oldest() const {
  const std::lock_guard lock(mutex_);
  return in_flight_.empty() ? nullptr : in_flight_.front();
}

std::vector<int> Progress::awaited_ranks(const Operation& op) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  const auto lags = [&](int r) {
    const auto& block = group_.block(r);
    switch (op.state) {
      case OpState::kQueued: return block.completed.load() + kOpRing - 1 < op.sequence();
      case OpState::kEntered: return block.entered.load() < op.sequence();
      case OpState::kMoved: return group_.record(r, op.sequence()).finished.load() != op.sequence();
      case OpState::kMatched: {
        // Behind others on the stages, or behind one whose way is not known yet.
        if (block.entered.load() <= matched_ && matched_ < published_) return true;
        const auto room = block.stage_used.load() + group_.layout().stage_bytes;
        return (!to_use_.empty() && block.stage_filled.load() < next_use().end) ||
               (!to_fill_.empty() && room < next_fill().end);
      }
      case OpState::kDone:
      case OpState::kFailed: return false;
    }
    return false;
  };
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank() && lags(r)) ranks.push_back(r);
  }
  return ranks;
}

void Progress::add_wait(OpKind kind, double seconds) {
  const std::lock_guard lock(mutex_);
  stats_[kind].wait_s += seconds;
}

CommStats Progress::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Progress::reset_stats() {
  const std::lock_guard lock(mutex_);
  stats_.clear();
}

}  // namespace convoy
