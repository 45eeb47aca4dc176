// One backward: gathers units as their nodes come up, reduces gradients as they become complete.
#pragma once

#include "backward_nodes.h"
#include "convoy/comm/communicator.h"
#include "gatherer.h"
#include "param_group.h"

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// What a backward works on; all of it outlives the backward.
struct BackwardSetup {
  std::vector<ParamGroup>& groups;
  Gatherer& gatherer;
  Communicator& comm;
  /// Units in the order in which they are reduced: the same on all ranks.
  std::vector<std::size_t>& order;
  /// See Note [The end of a backward].
  at::Tensor& flags;
  const AccumulatorMap& accumulators;
  /// Training forwards of the model since the last backward: see Note [Steps that pair].
  std::int64_t forwards = 0;
};

/// Note [One order of collectives]
/// Ranks must start the same collectives in the same order, but which unit is complete first may
/// differ between them, and a rank may not use a unit at all. So units are reduced strictly in
/// `order`: one that is complete waits for its turn, and at the end of backward every trainable
/// unit is delivered, used or not. After the first synchronised backward rank 0's order of
/// completion becomes the order of all.
///
/// Note [Steps that pair]
/// A rank that skips a backward would pair its next one with the peers' last: reductions of the
/// same units, of different steps. So tags carry the number of training forwards since the last
/// backward when it is not 1. Forwards under no_sync, without a graph and in evaluation mode do not
/// count: they are a rank's own business where gathers are shared.
///
/// Note [Units that a rank passes by]
/// With private gathers reductions and gathers are one order of collectives, and where in it a
/// reduction stands must not depend on what a rank has used. A backward comes to the units in the
/// reverse of the order in which their forwards ended, because autograd runs nodes by descending
/// number. So each rank follows that route: before it gathers a unit it comes to those before it
/// that have no node here (a unit that hands its input on, say), gathers them as the peers do, and
/// launches their reductions where the peers' are complete. The route is known for the last forward
/// of the model; what runs inside of a checkpoint is not on it. Units around others are reduced
/// after those inside them, as the last gradient of theirs may come before or after.
///
/// A backward inside a backward (a checkpoint's recomputation) belongs to the outermost one.
/// Thread rule: the thread that runs the backward.
class BackwardPass {
 public:
  /// Called inside the backward's first hook. `synchronised` is false under no_sync. Errors:
  /// kMisuse if this is an autograd::grad for parameters, or a parameter was used outside of its
  /// unit.
  BackwardPass(BackwardSetup setup, std::uint64_t number, bool synchronised);

  /// A node of a unit's graph is about to run.
  void on_node(UnitRun& run, const Node& node);
  /// A gradient has arrived at an accumulator; undefined if there is none.
  void on_gradient(std::size_t unit, std::size_t leaf, const at::Tensor& gradient);
  /// The backward has ended: delivers everything and puts shard gradients on the leaves. Returns
  /// whether it did (not under no_sync).
  bool finish(bool learn_order);
  /// The backward has failed: back to shards, nothing of it kept.
  void abandon() noexcept;

  /// False for autograd::grad towards inputs.
  bool brings_gradients() const noexcept { return kind_ != Kind::kInputsOnly; }
  /// True if peers are waiting, or will be, for what this backward owes them.
  bool owes_peers() const noexcept;
  std::int64_t begin_ns() const noexcept { return begin_ns_; }
  /// When the last gradient so far arrived: what is reduced later overlaps with nothing.
  std::int64_t last_gradient_ns() const noexcept { return last_gradient_ns_; }

 private:
  enum class Kind {
    kSynchronised,
    kLocal,       ///< Under no_sync.
    kInputsOnly,  ///< autograd::grad for inputs: no parameter gets a gradient.
  };
  enum class Delivery { kOpen, kReducing, kReduced };

  static constexpr int kNoTask = -1;

  struct Progress {
    std::size_t expected = 0;  ///< Gradients that this graph task will bring.
    std::size_t arrived = 0;
    std::size_t trainable = 0;
    std::int64_t pending_nodes = 0;
    /// Graph task in which a node of the unit may be running user code now, or kNoTask.
    int running_in = kNoTask;
    bool seen = false;  ///< Some node of the unit has come up.
    bool listed = false;
    bool passed = false;        ///< Backward has come to it, and it gets no gradient.
    std::int64_t begin_ns = 0;  ///< When the first node came up.
    Delivery delivery = Delivery::kOpen;
    std::vector<bool> arrived_at;
  };
  struct Flight {
    std::size_t unit;
    ReduceInFlight reduce;
  };

  void look_at_graph();
  void follow_route(std::size_t unit);
  void come_to(std::size_t unit);
  void gather(std::size_t unit);
  bool is_ahead(std::size_t unit) const;
  void require_uses_in_units() const;
  bool complete(std::size_t unit) const;
  bool is_past(std::size_t unit) const;
  bool may_give_up(std::size_t main) const;
  bool may_launch(std::size_t unit) const;
  void note_task();
  /// Notes that the unit is complete; false if it is known.
  bool list(std::size_t unit);
  void note_complete(std::size_t unit);
  void note_no_gradients(std::size_t unit);
  void trace_unit(std::size_t unit) const;
  void launch_ready();
  void launch(std::size_t unit);
  void ensure_buffer(std::size_t unit);
  void finish_oldest();
  void finish_synchronised(bool learn_order);
  std::vector<std::vector<bool>> agree(std::vector<bool>& late);
  void deliver_late(const std::vector<bool>& late);
  void learn();

  BackwardSetup setup_;
  std::uint64_t number_;
  int task_;
  Kind kind_;
  bool reenters_ = false;         ///< User code may start a backward inside this one.
  bool all_have_failed_ = false;  ///< With the same error, at the same place.
  std::int64_t begin_ns_;
  std::int64_t last_gradient_ns_;
  std::vector<Progress> progress_;
  std::size_t next_ = 0;  ///< In order.
  /// See Note [Units that a rank passes by]; empty where gathers are shared.
  std::deque<std::size_t> route_;
  std::deque<Flight> flights_;
  std::vector<std::size_t> completed_;  ///< Units in the order of completion on this rank.
};

}  // namespace convoy::fsdp
