// What a step works on: the parameters that have gradients, checked and brought to one layout.
#include "optim/leaves.h"

#include "convoy/base/check.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

namespace convoy::optim {
namespace {

/// True if element i of memory is the same element in both, and both own all of it.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense() && !a.is_neg();
}

at::Tensor copy_in_layout_of(const at::Tensor& model, const at::Tensor& source) {
  auto copy = at::empty_strided(model.sizes(), model.strides(), model.options());
  copy.copy_(source);
  return copy;
}

void check_leaf(const SteppedLeaf& leaf) {
  const auto& param = leaf.values;
  const auto& grad = leaf.gradient;
  CONVOY_REQUIRE(param.is_cpu() && param.layout() == at::kStrided, kInvalidArgument, leaf.place(),
                 ": only dense CPU parameters can be stepped, this one is a ", param.toString());
  CONVOY_REQUIRE(param.scalar_type() == at::kFloat || param.scalar_type() == at::kDouble,
                 kInvalidArgument, leaf.place(), ": the dtype is ", param.scalar_type(),
                 "; only float32 and float64 parameters can be stepped (keep a float32 parameter "
                 "and compute in the other dtype)");
  CONVOY_REQUIRE(at::has_internal_overlap(param) != at::MemOverlap::Yes, kInvalidArgument,
                 leaf.place(),
                 ": several of its elements are one place in memory (an expanded "
                 "tensor); a parameter needs memory for each");
  CONVOY_REQUIRE(grad.layout() == at::kStrided, kInvalidArgument, leaf.place(),
                 ": the gradient is sparse, which is not supported; use a dense one (for an "
                 "embedding: sparse = false)");
  CONVOY_REQUIRE(grad.is_cpu() && at::isFloatingType(grad.scalar_type()), kInvalidArgument,
                 leaf.place(), ": the gradient is a ", grad.toString(),
                 ", not a floating point CPU tensor");
  CONVOY_REQUIRE(grad.sizes() == param.sizes(), kInvalidArgument, leaf.place(),
                 ": the gradient has shape ", grad.sizes(),
                 "; set by hand, or still kept under no_sync of a sharded model (step after a "
                 "synchronised backward)");
}

void make_dense(SteppedLeaf& leaf) {
  if (leaf.values.numel() == 0) return;
  if (!leaf.values.is_non_overlapping_and_dense()) leaf.values = leaf.values.contiguous();
  if (leaf.gradient.scalar_type() != leaf.values.scalar_type() ||
      !same_layout(leaf.gradient, leaf.values)) {
    leaf.gradient = copy_in_layout_of(leaf.values, leaf.gradient);
  }
}

}  // namespace

std::string SteppedLeaf::place() const {
  return concat(optimizer, ", parameter ", index, " of group ", group, " (", param.sizes(), ")");
}

std::vector<SteppedLeaf> collect_leaves(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const char* optimizer) {
  std::vector<SteppedLeaf> leaves;
  std::unordered_map<const c10::TensorImpl*, std::size_t> group_of;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto& param = params[i];
      const auto [seen, is_new] = group_of.try_emplace(param.unsafeGetTensorImpl(), g);
      CONVOY_REQUIRE(seen->second == g, kInvalidArgument, optimizer, ", parameter ", i,
                     " of group ", g, " (", param.sizes(), ") is also in group ", seen->second,
                     "; a parameter belongs to one group");
      if (!is_new || !param.grad().defined()) continue;
      auto& leaf = leaves.emplace_back(
          SteppedLeaf{param, param.detach(), param.grad().detach(), optimizer, g, i});
      check_leaf(leaf);
      make_dense(leaf);
    }
  }
  return leaves;
}

at::Tensor matching_state(const SteppedLeaf& leaf, const at::Tensor& state, const char* name) {
  if (!state.defined()) return at::zeros_like(leaf.values);
  CONVOY_REQUIRE(state.sizes() == leaf.values.sizes() && state.is_cpu() &&
                     state.scalar_type() == leaf.values.scalar_type(),
                 kInvalidArgument, leaf.place(), ": its state ", name, " is a ", state.toString(),
                 " of shape ", state.sizes(),
                 "; it was made for other parameters: this optimizer has stepped before the model "
                 "was sharded, or has loaded the state of another model. Make the optimizer after "
                 "wrapping, or clear its state()");
  return same_layout(state, leaf.values) ? state : copy_in_layout_of(leaf.values, state);
}

void finish_leaves(const std::vector<SteppedLeaf>& leaves) {
  for (const auto& leaf : leaves) {
    if (leaf.values.numel() != 0 && leaf.values.data_ptr() != leaf.param.data_ptr()) {
      leaf.param.detach().copy_(leaf.values);  // Raises the version, which detach() shares.
    } else {
      torch::autograd::impl::bump_version(leaf.param);
    }
  }
}

at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode enabled(true);
  return closure();
}

const std::vector<torch::optim::OptimizerParamGroup>& checked_groups(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const char* optimizer) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      CONVOY_REQUIRE(params[i].defined(), kInvalidArgument, optimizer, ": parameter ", i,
                     " of group ", g, " is an undefined tensor");
      CONVOY_REQUIRE(params[i].is_leaf(), kInvalidArgument, optimizer, ": parameter ", i,
                     " of group ", g, " (", params[i].sizes(),
                     ") is not a leaf: it is the result of an operation, so its gradient would "
                     "never arrive");
    }
  }
  return groups;
}

std::vector<torch::optim::OptimizerParamGroup> bare_groups(const std::vector<ParamGroup>& groups,
                                                           const char* optimizer) {
  std::vector<torch::optim::OptimizerParamGroup> bare;
  bare.reserve(groups.size());
  for (const auto& group : groups) bare.emplace_back(group.params);
  checked_groups(bare, optimizer);
  return bare;
}

}  // namespace convoy::optim
