// The walk over a unit's part of the graph, and the two kinds of hook.
#include "backward_nodes.h"

#include "recompute/made_here.h"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace convoy::fsdp {
namespace {

using torch::autograd::variable_list;

constexpr std::uint64_t kAccumulatorSequence = std::numeric_limits<std::uint64_t>::max();

class NodeHook final : public torch::autograd::FunctionPreHook {
 public:
  NodeHook(std::shared_ptr<UnitRun> run, std::size_t index, const void* owner)
      : run_(std::move(run)), index_(index), owner_(owner) {}
  // The node is going, and its address may soon be another node's.
  ~NodeHook() override { run_->nodes[index_] = nullptr; }
  NodeHook(const NodeHook&) = delete;
  NodeHook& operator=(const NodeHook&) = delete;

  const void* owner() const noexcept { return owner_; }

  variable_list operator()(const variable_list& gradients) override {
    run_->on_node(*run_, *run_->nodes[index_]);
    return gradients;
  }

 private:
  std::shared_ptr<UnitRun> run_;
  std::size_t index_;  // Of the node that owns this hook.
  const void* owner_;  // Compared, never followed.
};

class AccumulatorHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit AccumulatorHook(std::function<bool(const at::Tensor&)> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}

  variable_list operator()(const variable_list& gradients) override {
    return on_gradient_(gradients[0]) ? variable_list(1) : gradients;
  }

 private:
  std::function<bool(const at::Tensor&)> on_gradient_;
};

}  // namespace

GraphPart walk_graph(const std::vector<at::Tensor>& outputs, std::uint64_t first_sequence) {
  GraphPart part;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (recompute::made_here_since(*node, first_sequence) && seen.insert(node).second) {
      part.nodes.push_back(node);
    }
  };
  for (const at::Tensor& output : outputs) {
    if (const auto& node = output.grad_fn()) visit(node.get());
  }
  for (std::size_t next = 0; next < part.nodes.size(); ++next) {
    const Node& from = *part.nodes[next];
    for (const auto& edge : from.next_edges()) {
      Node* node = edge.function.get();
      if (node == nullptr) continue;
      if (node->sequence_nr() == kAccumulatorSequence) {
        part.accumulator_edges.push_back({node, from.sequence_nr()});
      } else {
        visit(node);
      }
    }
  }
  return part;
}

void hook_run(const std::shared_ptr<UnitRun>& run, const std::vector<Node*>& nodes,
              const void* owner) {
  run->nodes.assign(nodes.begin(), nodes.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    // Units end their forward inner first; gathers go outer first, as in forward.
    auto& hooks = nodes[i]->pre_hooks();
    hooks.insert(hooks.begin(), std::make_unique<NodeHook>(run, i, owner));
  }
}

bool is_hooked_for(const Node& node, const void* owner) {
  const auto& hooks = node.pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) {
    const auto* own = dynamic_cast<const NodeHook*>(hook.get());
    return own != nullptr && own->owner() == owner;
  });
}

void hook_accumulator(Node& accumulator, std::function<bool(const at::Tensor&)> on_gradient) {
  accumulator.add_pre_hook(std::make_unique<AccumulatorHook>(std::move(on_gradient)));
}

bool may_reenter(const Node& node) {
  // Node::name() demangles, which costs more than the rest of the walk; the mangled name of
  // torch::autograd::CppNode<F> holds "CppNode" as it is.
  const Node& object = node;
  return std::strstr(typeid(object).name(), "CppNode") != nullptr;
}

}  // namespace convoy::fsdp
