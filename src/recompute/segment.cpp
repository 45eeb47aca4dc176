// Forward without a graph, and the node that stands for it: its backward runs the segment again.
#include "convoy/recompute/segment.h"

#include "convoy/base/check.h"
#include "recompute/autocast_state.h"
#include "recompute/entrance.h"
#include "recompute/outside_graph.h"
#include "recompute/random_state.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace convoy::recompute {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the recomputation must give again.
struct OutputInfo {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype;
  at::Device device;
};

/// What the node keeps beside the inputs.
struct Kept : torch::CustomClassHolder {
  detail::Segment segment;
  std::optional<RandomState> random;  ///< Absent if forward drew nothing.
  AutocastState autocast;
  std::vector<OutputInfo> outputs;
  std::vector<bool> wants_gradient;  ///< By input.
};

std::vector<OutputInfo> infos_of(const std::vector<at::Tensor>& outputs) {
  std::vector<OutputInfo> infos;
  for (const at::Tensor& output : outputs) {
    infos.push_back({output.sizes().vec(), output.scalar_type(), output.device()});
  }
  return infos;
}

/// How often `tensor` was changed in place; tensors of inference mode do not count.
std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

void require_same(const std::vector<at::Tensor>& again, const std::vector<OutputInfo>& expected) {
  constexpr const char* kRule =
      ". The function must do the same each time: what it reads besides its inputs (members, "
      "counters, random numbers of its own) must not change between forward and backward";
  CONVOY_REQUIRE(again.size() == expected.size(), kMisuse,
                 "checkpoint: running the function again ", "in backward gave ", again.size(),
                 " tensors, in forward it gave ", expected.size(), kRule);
  for (std::size_t i = 0; i < again.size(); ++i) {
    const OutputInfo& info = expected[i];
    const bool same = again[i].sizes() == at::IntArrayRef(info.sizes) &&
                      again[i].scalar_type() == info.dtype && again[i].device() == info.device;
    CONVOY_REQUIRE(same, kMisuse, "checkpoint: running the function again in backward gave a ",
                   again[i].scalar_type(), " tensor of shape ", again[i].sizes(), " on ",
                   again[i].device(), " as result ", i, ", in forward it was ", info.dtype, " ",
                   at::IntArrayRef(info.sizes), " on ", info.device, kRule);
  }
}

/// Runs the segment again, with a graph.
variable_list recompute_outputs(const Kept& kept, std::vector<at::Tensor> inputs) {
  std::optional<RandomStateScope> random;
  if (kept.random) random.emplace(*kept.random);
  const AutocastScope autocast(kept.autocast);
  return kept.segment(std::move(inputs));
}

/// Note [Re-entrant checkpoints]
/// Backward of this node runs forward again and then a whole backward of the new graph, inside the
/// outer one. The other form hooks what autograd saves and needs no backward inside a backward, but
/// default hooks for saved tensors exist for Python only (docs/design/0012). What follows from it:
/// gradients of parameters are added at the end of their segment, which DDP and FSDP expect; and
/// gradients towards chosen inputs only would add to parameters nobody asked for, so they are
/// refused.
class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<Kept>& kept,
                               const std::vector<at::Tensor>* outputs) {
    context->set_materialize_grads(false);
    context->save_for_backward(inputs.vec());
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    variable_list results;
    variable_list without_gradient;
    for (const at::Tensor& output : *outputs) {
      // Detached: an output may be an input, or a view, which could not be changed in place.
      results.push_back(output.detach());
      if (!torch::autograd::isDifferentiableType(output.scalar_type())) {
        without_gradient.push_back(results.back());
      }
    }
    context->mark_non_differentiable(without_gradient);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    CONVOY_REQUIRE(!at::GradMode::is_enabled(), kMisuse,
                   "checkpoint: backward with create_graph is not supported: the graph of the "
                   "recomputation is gone when a second derivative would read it");
    CONVOY_REQUIRE(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(), kMisuse,
                   "checkpoint: autograd::grad, and backward with inputs, do not work through a "
                   "checkpoint, whose backward brings gradients to all parameters; use a plain "
                   "backward(), or run this forward without checkpoints");
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["kept"].toCapsule();
    const auto& kept = static_cast<const Kept&>(*capsule);

    const auto first_sequence = at::sequence_number::peek();
    Entrance entrance;
    variable_list outputs;
    {
      const at::AutoGradMode with_graph(true);
      entrance = enter(saved, kept.wants_gradient);
      outputs = recompute_outputs(kept, std::move(entrance.inputs));
    }
    require_same(outputs, kept.outputs);
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(std::move(gradients[i]));
    }
    outputs.clear();
    if (!roots.empty()) {
      require_no_outside_graph(roots, first_sequence);
      torch::autograd::backward(roots, root_gradients);
    }
    return input_gradients(kept, *entrance.gradients, saved.size());
  }

 private:
  /// In the places of forward's arguments, the last two of which are no tensors.
  static variable_list input_gradients(const Kept& kept, const variable_list& caught,
                                       std::size_t input_count) {
    variable_list result(input_count + 2);
    std::size_t next = 0;
    for (std::size_t i = 0; i < kept.wants_gradient.size(); ++i) {
      if (kept.wants_gradient[i]) result[i] = caught[next++];
    }
    return result;
  }
};

}  // namespace

namespace detail {

struct SegmentForward::State {
  at::NoGradGuard no_grad;
  WithoutAutocastCache no_cache;
  std::vector<at::Tensor> inputs;
  std::vector<std::int64_t> versions;
  std::optional<RandomState> random;
  AutocastState autocast;
};

SegmentForward::SegmentForward(std::vector<at::Tensor> inputs, const CheckpointOptions& options) {
  const auto devices = devices_of(inputs);
  AutocastState autocast = AutocastState::of(devices);  // Before the cache is switched off.
  state_ = std::make_unique<State>();
  state_->autocast = std::move(autocast);
  if (options.preserve_rng_state) state_->random = RandomState::of(devices);
  for (const at::Tensor& input : inputs) {
    state_->versions.push_back(version_of(input));
  }
  state_->inputs = std::move(inputs);
}

SegmentForward::~SegmentForward() = default;

std::vector<at::Tensor> SegmentForward::finish(const std::vector<at::Tensor>& outputs,
                                               Segment segment) {
  const std::unique_ptr<State> state = std::move(state_);
  for (std::size_t i = 0; i < state->inputs.size(); ++i) {
    const at::Tensor& input = state->inputs[i];
    CONVOY_REQUIRE(version_of(input) == state->versions[i], kMisuse,
                   "checkpoint: the function changed its input ", i, " (a ", input.scalar_type(),
                   " tensor of shape ", input.sizes(),
                   ") in place, so it cannot be run again from ", "it; let it change a copy");
  }
  const auto kept = c10::make_intrusive<Kept>();
  kept->segment = std::move(segment);
  kept->autocast = std::move(state->autocast);
  kept->outputs = infos_of(outputs);
  // A function that drew nothing leaves the generators alone in backward, where others may draw.
  if (state->random && !state->random->equals(state->random->now())) {
    kept->random = std::move(state->random);
  }
  std::vector<at::Tensor> inputs = std::move(state->inputs);
  for (const at::Tensor& input : inputs) kept->wants_gradient.push_back(input.requires_grad());
  const at::AutoGradMode with_graph(true);
  const auto& wants = kept->wants_gradient;
  if (std::find(wants.begin(), wants.end(), true) == wants.end()) {
    // Parameters inside need gradients all the same; this input lets backward come here.
    inputs.push_back(at::empty({0}, at::kFloat).requires_grad_());
    kept->wants_gradient.push_back(false);
  }
  return Checkpoint::apply(at::TensorList(inputs), kept, &outputs);
}

}  // namespace detail

}  // namespace convoy::recompute
