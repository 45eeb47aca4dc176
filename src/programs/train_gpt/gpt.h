// The network: a pre-norm GPT with learned positions.
#pragma once

#include "convoy/fsdp/unit.h"
#include "programs/train_gpt/model_config.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <vector>

namespace convoy::train_gpt {

/// Attention and feed-forward with their norms and residuals. [rows, seq, dim] in and out, float32
/// or bfloat16: computes in the dtype of its input, norms and sums inside in float32.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t dim, std::int64_t heads);
  at::Tensor forward(at::Tensor x);

  std::int64_t heads;
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, up, down;
};
using Block = Unit<BlockImpl>;

/// Tokens int64 [rows, tokens <= seq] to logits float32 [rows, tokens, vocab].
/// The head is a matrix of its own, or the token embedding where embeddings are tied.
/// With config.dtype bf16 weights are cast where they are used, which does nothing where FSDP shows
/// them cast already: so every strategy computes the same.
struct GPTImpl : torch::nn::Module {
  /// Weights are drawn from `seed` alone, in registration order, as in GPT-2: normal with deviation
  /// 0.02, those that end a residual branch smaller by sqrt(2 layers); biases 0, norms 1.
  GPTImpl(const ModelConfig& config, std::uint64_t seed);
  at::Tensor forward(at::Tensor tokens);

  ModelConfig config;
  torch::nn::Embedding tok, pos;
  std::vector<Block> blocks;
  torch::nn::LayerNorm ln;
  torch::nn::Linear head{nullptr};  ///< Null where embeddings are tied.
};
using GPT = Unit<GPTImpl>;

}  // namespace convoy::train_gpt
