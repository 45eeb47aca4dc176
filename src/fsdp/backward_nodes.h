// Finds the graph that a unit's forward has built and hooks every node of it.
#pragma once

#include "autograd_access.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace convoy::fsdp {

/// Note [Where the gather before backward is hooked]
/// Not on the outputs' grad_fn alone: with several outputs, with a unit that passes its input
/// through, or with a tensor that left the unit another way, that hook fires twice, on the wrong
/// node or never. Instead every node that the unit's forward created gets a hook: those reachable
/// from the outputs that this thread has made since forward began. Accumulators get their own hook
/// once.

/// One run of one unit's forward, as its graph remembers it.
struct UnitRun {
  std::size_t unit = 0;
  /// Called each time a backward reaches one of the nodes, before it runs.
  std::function<void(UnitRun&, const Node&)> on_node;
  std::vector<const Node*> nodes;  ///< Null where a node is gone.
  std::uint64_t backward = 0;      ///< The backward in which it was seen last.
};

/// Which parameter an accumulator belongs to.
struct LeafAddress {
  std::size_t unit = 0;
  std::size_t leaf = 0;
};
using AccumulatorMap = std::unordered_map<const Node*, LeafAddress>;

/// An edge from a node to an accumulator.
struct AccumulatorEdge {
  const Node* accumulator = nullptr;
  std::uint64_t from_sequence = 0;  ///< Of the node it comes from.
};

/// What lies between `outputs` and whatever was there before.
struct GraphPart {
  std::vector<Node*> nodes;
  std::vector<AccumulatorEdge> accumulator_edges;
};

/// Walks from `outputs` over the nodes that this thread has made since its sequence number was
/// `first_sequence`.
GraphPart walk_graph(const std::vector<at::Tensor>& outputs, std::uint64_t first_sequence);

/// Lists `nodes` in `run` for as long as they live, and has run->on_node called when a backward
/// reaches one, before what was hooked earlier. The nodes own the run. `owner` stands for the unit.
void hook_run(const std::shared_ptr<UnitRun>& run, const std::vector<Node*>& nodes,
              const void* owner);
/// Whether `node` was hooked for `owner`.
bool is_hooked_for(const Node& node, const void* owner);

/// Calls `on_gradient` with what arrives at an accumulator (maybe undefined) in place of adding it
/// to the leaf's gradient; if it returns false the gradient goes on as if there were no hook.
void hook_accumulator(Node& accumulator, std::function<bool(const at::Tensor&)> on_gradient);

/// True if `node` may run code of the user's in backward (a custom autograd function), and with it
/// another backward.
bool may_reenter(const Node& node);

}  // namespace convoy::fsdp
