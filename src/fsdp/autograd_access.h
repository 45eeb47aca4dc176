// The few inner parts of autograd that FSDP stands on, under names that hide their pointer types.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace convoy::fsdp {

using Node = torch::autograd::Node;
/// Owns a node: intrusive_ptr<Node> in libtorch 2.15, shared_ptr<Node> in 2.11.
using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

inline c10::weak_intrusive_ptr<Node> weak_node(const c10::intrusive_ptr<Node>& node) {
  return c10::weak_intrusive_ptr<Node>(node);
}
inline std::weak_ptr<Node> weak_node(const std::shared_ptr<Node>& node) { return node; }

/// A new accumulator for `leaf` with the leaf's present shape, whatever accumulator it had. The
/// caller must hold it: the leaf itself refers to it weakly.
inline NodePtr take_accumulator(const at::Tensor& leaf) {
  torch::autograd::impl::set_grad_accumulator(leaf, weak_node(NodePtr()));
  return torch::autograd::impl::grad_accumulator(leaf);
}

inline void put_back_accumulator(const at::Tensor& leaf, const NodePtr& accumulator) {
  torch::autograd::impl::set_grad_accumulator(leaf, weak_node(accumulator));
}

}  // namespace convoy::fsdp
