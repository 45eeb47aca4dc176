// The forwards that are going on: gathers on the way in, hooks the graph and reshards on the way
// out.
#pragma once

#include "backward_nodes.h"
#include "gatherer.h"
#include "param_group.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// One run of a unit's forward.
struct ForwardRun {
  std::size_t unit = 0;
  std::size_t module = 0;  ///< Which of the modules that share the unit.
  std::size_t depth = 0;   ///< Runs around this one.
  std::uint64_t first_sequence = 0;
  std::int64_t begin_ns = 0;      ///< When the unit was full.
  bool graph = false;             ///< Gradients are on: a backward may follow.
  bool was_full = false;          ///< The unit is full for somebody else: leave it so.
  bool in_backward = false;       ///< A recomputation: what follows at once needs it full.
  bool counts = false;            ///< A training forward of the model: see Note [Steps that pair].
  std::vector<std::size_t> uses;  ///< Of each leaf's accumulator before the run, part by part.
};

/// Runs nest, as units do. Thread rule: one thread at a time.
class ForwardRuns {
 public:
  ForwardRuns(std::vector<ParamGroup>& groups, Gatherer& gatherer, const AccumulatorMap& owners)
      : groups_(groups), gatherer_(gatherer), owners_(owners), rounds_(groups.size()) {}

  bool any() const noexcept { return !open_.empty(); }

  /// Makes the unit full. `take_accumulators` is called once it is. Error: kMisuse for a unit that
  /// uses a parameter of one around it which does not run.
  ForwardRun begin(std::size_t unit, std::size_t module, bool in_backward,
                   const std::function<void(std::size_t)>& take_accumulators);
  /// Checks that every use of a parameter is behind `outputs`, returns the nodes to hook, reshards.
  /// Error: kMisuse for a tensor that left the unit another way, and for a parameter used outside
  /// of its unit's forward.
  std::vector<Node*> finish(const ForwardRun& run, const std::vector<at::Tensor>& outputs);
  /// After an exception in the module's forward or in finish().
  void abandon(const ForwardRun& run) noexcept;

 private:
  /// What a unit's run that has ended has created.
  struct Range {
    std::size_t unit;
    std::uint64_t begin;
    std::uint64_t end;
  };

  /// Modules that share a unit, one forward each until it is given up.
  struct Round {
    bool waits = false;  ///< Full, between the forwards of its modules.
    bool graph = false;
    std::vector<bool> ran;
  };

  void require_lenders_full(std::size_t unit) const;
  void end_round(const ForwardRun& run);
  void give_up_waiting();
  void check_edges(const ForwardRun& run, const GraphPart& part) const;
  bool is_open(std::size_t unit) const;
  bool trains(std::size_t unit) const;

  std::vector<ParamGroup>& groups_;
  Gatherer& gatherer_;
  const AccumulatorMap& owners_;
  std::vector<std::size_t> open_;
  std::vector<Round> rounds_;  ///< By unit.
  std::vector<Range> ended_;   ///< Inside the outermost run going on.
};

}  // namespace convoy::fsdp
