// A walk over the new nodes and the edges that leave them.
#include "recompute/outside_graph.h"

#include "convoy/base/check.h"
#include "recompute/made_here.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace convoy::recompute {
namespace {

using torch::autograd::Node;

bool is_accumulator(const Node& node) {
  return node.sequence_nr() == std::numeric_limits<std::uint64_t>::max();
}

/// A parameter's cast that autocast keeps, for example: harmless.
bool is_of_leaves(const Node& node) {
  const auto& edges = node.next_edges();
  return std::all_of(edges.begin(), edges.end(), [](const auto& edge) {
    return !edge.function || is_accumulator(*edge.function);
  });
}

}  // namespace

void require_no_outside_graph(const std::vector<at::Tensor>& roots, std::uint64_t first_sequence) {
  std::vector<const Node*> nodes;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Node* node) {
    if (node == nullptr || !seen.insert(node).second) return;
    if (is_accumulator(*node) || made_here_since(*node, first_sequence)) {
      nodes.push_back(node);
      return;
    }
    CONVOY_REQUIRE(is_of_leaves(*node), kMisuse,
                   "checkpoint: the function uses a tensor with a graph (", node->name(),
                   ") that is not among its inputs; give it as one: checkpoint(fn, x, tensor)");
  };
  for (const at::Tensor& root : roots) visit(root.grad_fn().get());
  for (std::size_t next = 0; next < nodes.size(); ++next) {
    for (const auto& edge : nodes[next]->next_edges()) visit(edge.function.get());
  }
}

}  // namespace convoy::recompute
