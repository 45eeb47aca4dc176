// A block with everything that a recomputation must repeat, and runs of it to compare.
#pragma once

#include "convoy/recompute/checkpoint.h"
#include "support/check.h"

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

namespace convoy::test {

/// Normalisation, a product, dropout and a residual. [rows, 8] to [rows, 8].
struct DropBlockImpl : torch::nn::Module {
  explicit DropBlockImpl(double dropout = 0.1)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        up(register_module("up", torch::nn::Linear(8, 20))),
        down(register_module("down", torch::nn::Linear(20, 8))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + drop(down(torch::gelu(up(norm(x))))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(DropBlock);

inline torch::Tensor rows_of(std::uint64_t seed, std::int64_t rows = 5, std::int64_t width = 8) {
  return torch::randn({rows, width}, at::detail::createCPUGenerator(seed));
}

inline at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

/// What a run leaves behind.
using Traces = std::vector<std::pair<std::string, at::Tensor>>;

inline void trace_gradients(Traces& traces, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    traces.emplace_back("gradient of " + item.key(), item.value().grad());
  }
}

inline void check_same_traces(const Traces& left, const Traces& right) {
  check_equal(left.size(), right.size(), "traces");
  for (std::size_t i = 0; i < left.size(); ++i) {
    check_same_bits(left[i].second, right[i].second, left[i].first);
  }
}

}  // namespace convoy::test
