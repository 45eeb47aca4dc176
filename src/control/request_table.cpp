// Matches answers to requests.
#include "control/request_table.h"

#include "convoy/base/check.h"

#include <utility>

namespace convoy {

std::uint32_t RequestTable::open() {
  const std::lock_guard lock(mutex_);
  if (lost_) throw *lost_;
  while (next_ == 0 || pending_.contains(next_)) ++next_;
  pending_.try_emplace(next_);
  return next_++;
}

RequestTable::Outcome RequestTable::wait(std::uint32_t number, Deadline deadline,
                                         bool can_interrupt, Reply& reply) {
  std::unique_lock lock(mutex_);
  const auto found = pending_.find(number);
  CONVOY_CHECK(found != pending_.end(), "request ", number, " is not open");
  auto& pending = found->second;
  const auto is_over = [&] { return pending.reply || lost_ || (can_interrupt && is_interrupted_); };
  pending.changed.wait_until(lock, deadline.point(), is_over);
  if (pending.reply) {
    reply = std::move(*pending.reply);
    pending_.erase(found);
    return Outcome::kAnswered;
  }
  if (lost_) {
    pending_.erase(found);
    throw *lost_;
  }
  return can_interrupt && is_interrupted_ ? Outcome::kInterrupted : Outcome::kTimedOut;
}

void RequestTable::close(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  pending_.erase(number);
}

void RequestTable::deliver(std::uint32_t number, Reply reply) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  found->second.reply = std::move(reply);
  found->second.changed.notify_all();
}

void RequestTable::interrupt() {
  const std::lock_guard lock(mutex_);
  is_interrupted_ = true;
  for (auto& [number, pending] : pending_) pending.changed.notify_all();
}

void RequestTable::lose(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (!lost_) lost_ = cause;
  for (auto& [number, pending] : pending_) pending.changed.notify_all();
}

}  // namespace convoy
