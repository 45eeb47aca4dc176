// Sums over tensors, and what the optimizers of libtorch keep.
#include "convoy/profile/memory_report.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>

namespace convoy::profile {

std::optional<std::int64_t> MemoryReport::other() const {
  if (!process.rss_peak || !process.files) return std::nullopt;
  return *process.rss_peak - *process.files - parameters - gradients - optimizer - buffers -
         activations_peak;
}

namespace {

template <class State>
std::int64_t adam_bytes(const State& state) {
  return tensor_bytes(std::array{state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()});
}

std::int64_t state_bytes(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;  // NOLINT: five states of one family
  if (const auto* s = dynamic_cast<const AdamWParamState*>(&state)) return adam_bytes(*s);
  if (const auto* s = dynamic_cast<const AdamParamState*>(&state)) return adam_bytes(*s);
  if (const auto* s = dynamic_cast<const SGDParamState*>(&state)) {
    return tensor_bytes(std::array{s->momentum_buffer()});
  }
  if (const auto* s = dynamic_cast<const RMSpropParamState*>(&state)) {
    return tensor_bytes(std::array{s->square_avg(), s->momentum_buffer(), s->grad_avg()});
  }
  if (const auto* s = dynamic_cast<const AdagradParamState*>(&state)) {
    return tensor_bytes(std::array{s->sum()});
  }
  return 0;
}

}  // namespace

std::int64_t optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) bytes += state_bytes(*state);
  return bytes;
}

MemoryReport memory_report(std::span<const ShardSpan> spans, const std::vector<at::Tensor>& buffers,
                           const torch::optim::Optimizer& optimizer, std::int64_t activations) {
  std::vector<at::Tensor> leaves, gradients;
  for (const ShardSpan& span : spans) {
    leaves.push_back(span.leaf);
    gradients.push_back(span.leaf.grad());
  }
  return {.process = read_process_memory(),
          .parameters = tensor_bytes(leaves),
          .gradients = tensor_bytes(gradients),
          .optimizer = optimizer_bytes(optimizer),
          .buffers = tensor_bytes(buffers),
          .activations_peak = activations};
}

std::int64_t tensor_bytes(std::span<const at::Tensor> tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace convoy::profile
