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
/// from the outputs whose sequence number is not below the one noted before forward. Accumulators
/// carry UINT64_MAX and get their own hook once.

/// One run of one unit's forward, as its graph remembers it.
struct UnitRun {
  std::size_t unit = 0;
  std::vector<const Node*> nodes;  ///< Compared, never followed: nodes may be gone.
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

/// Walks from `outputs` over the nodes whose sequence number is at least `first_sequence`.
GraphPart walk_graph(const std::vector<at::Tensor>& outputs, std::uint64_t first_sequence);

/// Calls `on_node` each time a backward reaches `node`, before it runs and before what was hooked
/// earlier. Owned by the node. `owner` stands for the unit whose forward created the node.
void hook_node(Node& node, const void* owner, std::function<void(const Node&)> on_node);
/// Whether `node` was hooked for `owner`.
bool is_hooked_for(const Node& node, const void* owner);

/// Calls `on_gradient` with what arrives at an accumulator (maybe undefined) in place of adding it
/// to the leaf's gradient; if it returns false the gradient goes on as if there were no hook.
void hook_accumulator(Node& accumulator, std::function<bool(const at::Tensor&)> on_gradient);

/// True if `node` may run code of the user's in backward (a custom autograd function), and with it
/// another backward.
bool may_reenter(const Node& node);

}  // namespace convoy::fsdp
