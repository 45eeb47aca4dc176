// Moves a rank's operations on, in steps that never wait: what is possible now is done now.
#pragma once

#include "comm/host/arena.h"
#include "comm/host/host_group.h"
#include "comm/host/operation.h"
#include "convoy/base/trace.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace convoy {

// Note [Order]
// Operations get their numbers, enter the rings of headers and are matched in call order. Staged
// ones also move in that order, because places on the stages follow from everything before. Direct
// ones move as soon as they are matched. So each step of an operation depends only on steps of the
// same or of earlier operations, and ranks that all make progress cannot wait for each other in a
// ring.

/// What one call of advance() found for the operation that its caller waits for.
struct Advance {
  bool has_moved = false;  ///< Something went on; it may be worth to look again at once.
  OpState state = OpState::kQueued;
};

/// Thread-safe: one lock for everything.
class Progress {
 public:
  Progress(const HostGroup& group, Arena& arena, std::shared_ptr<trace::Sink> trace);

  /// Takes an operation in and does what is possible at once. An allocate comes with its
  /// plan.
  OperationPtr start(Operation op);
  /// Does all steps that are possible now. Never waits; a failure becomes the group's failure.
  Advance advance(const Operation* awaited = nullptr) noexcept;
  OpState state(const Operation& op) const;
  /// The error of this operation alone (allocate), once it is done.
  std::optional<Error> error(const Operation& op) const;
  /// True if nothing is in flight.
  bool is_idle() const;

  /// Ranks that the operation waits for now; empty when its next step is this rank's own.
  std::vector<int> awaited_ranks(const Operation& op) const;
  /// The oldest operation in flight, if any.
  OperationPtr oldest() const;

  void add_wait(OpKind kind, double seconds);
  CommStats stats() const;
  void reset_stats();

 private:
  bool advance_all();
  bool publish();
  bool match();
  bool choose_routes();
  bool move_direct_ones();
  bool fill_stages();
  bool use_stages();
  bool finish_direct_ones();
  void prepare_allocate(Operation& op);
  void finish_allocate(Operation& op);
  bool retire();
  void complete(Operation& op);
  void fail_all() noexcept;
  bool all_finished(const Operation& op) const;
  StageRange next_fill() const;
  StageRange next_use() const;

  const HostGroup& group_;
  Arena& arena_;
  std::shared_ptr<trace::Sink> trace_;

  mutable std::mutex mutex_;
  std::deque<OperationPtr> in_flight_;  ///< In call order; done ones leave at the front.
  std::uint64_t published_ = 0;         ///< Newest sequence in the ring.
  std::uint64_t matched_ = 0;
  std::uint64_t routed_ = 0;
  std::uint64_t retired_ = 0;
  std::vector<OperationPtr> to_move_;    ///< Direct, matched.
  std::vector<OperationPtr> to_finish_;  ///< Direct, this rank's part is done.
  std::deque<OperationPtr> to_fill_;     ///< Staged, not all of it is on the stage.
  std::deque<OperationPtr> to_use_;      ///< Staged, not all results are made.
  std::uint64_t fill_position_ = 0;
  std::uint64_t use_position_ = 0;
  CommStats stats_;
};

}  // namespace convoy
