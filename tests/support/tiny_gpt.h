// A transformer small enough for tests of a second, with odd sizes everywhere, and data for it.
#pragma once

#include "convoy/fsdp/unit.h"

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace convoy::test {

struct TinyGptConfig {
  std::int64_t vocabulary = 29;
  std::int64_t dim = 12;
  std::int64_t heads = 3;
  std::int64_t hidden = 31;
  std::int64_t layers = 3;
  std::int64_t sequence = 7;
};

/// Pre-norm block: causal attention, then a tanh-GELU feed-forward. Input and output [B, T, dim].
class TinyBlockImpl : public torch::nn::Module {
 public:
  explicit TinyBlockImpl(const TinyGptConfig& config)
      : heads_(config.heads),
        norm_1_(register_module("norm_1", torch::nn::LayerNorm(norm(config)))),
        qkv_(register_module("qkv", torch::nn::Linear(config.dim, 3 * config.dim))),
        project_(register_module("project", torch::nn::Linear(config.dim, config.dim))),
        norm_2_(register_module("norm_2", torch::nn::LayerNorm(norm(config)))),
        up_(register_module("up", torch::nn::Linear(config.dim, config.hidden))),
        down_(register_module("down", torch::nn::Linear(config.hidden, config.dim))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attend(norm_1_(x));
    return x + down_(torch::gelu(up_(norm_2_(x)), "tanh"));
  }

 private:
  static torch::nn::LayerNormOptions norm(const TinyGptConfig& config) {
    return torch::nn::LayerNormOptions({config.dim});
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2) / heads_;
    auto split = [&](const torch::Tensor& t) {
      return t.view({batch, time, heads_, width}).transpose(1, 2);
    };
    const auto parts = qkv_(x).chunk(3, 2);
    const auto scores = split(parts[0]).matmul(split(parts[1]).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(width));
    const auto mask = torch::ones({time, time}, torch::kBool).triu(1);
    const auto mixed = scores.masked_fill(mask, -1e9).softmax(-1).matmul(split(parts[2]));
    return project_(mixed.transpose(1, 2).reshape({batch, time, x.size(2)}));
  }

  std::int64_t heads_;
  torch::nn::LayerNorm norm_1_;
  torch::nn::Linear qkv_, project_;
  torch::nn::LayerNorm norm_2_;
  torch::nn::Linear up_, down_;
};
using TinyBlock = convoy::Unit<TinyBlockImpl>;

/// Tokens [B, T] int64 to logits [B, T, vocabulary].
class TinyGptImpl : public torch::nn::Module {
 public:
  explicit TinyGptImpl(const TinyGptConfig& config = {})
      : token_(register_module("token", torch::nn::Embedding(config.vocabulary, config.dim))),
        position_(register_module("position", torch::nn::Embedding(config.sequence, config.dim))),
        blocks_(register_module("blocks", torch::nn::ModuleList())),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.dim})))),
        head_(register_module(
            "head", torch::nn::Linear(
                        torch::nn::LinearOptions(config.dim, config.vocabulary).bias(false)))) {
    for (std::int64_t i = 0; i < config.layers; ++i) blocks_->push_back(TinyBlock(config));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = token_(tokens) + position_(torch::arange(tokens.size(1)));
    for (const auto& block : *blocks_) x = block->as<TinyBlock>()->forward(x);
    return head_(norm_(x));
  }

 private:
  torch::nn::Embedding token_, position_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
using TinyGpt = convoy::Unit<TinyGptImpl>;

/// Fills every parameter with normal values of deviation 0.2 from a generator of its own, so that
/// ranks that are threads of one process do not share the default generator.
inline void seed_parameters(torch::nn::Module& module, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(seed);
  for (auto& parameter : module.parameters()) parameter.normal_(0.0, 0.2, generator);
}

struct TinyBatch {
  torch::Tensor tokens;   ///< [B, T] int64
  torch::Tensor targets;  ///< [B, T] int64
};

/// The batch of `rank` in `step`: different for each.
inline TinyBatch tiny_batch(int rank, int step, const TinyGptConfig& config = {},
                            std::int64_t rows = 2) {
  auto generator = at::detail::createCPUGenerator(1000003ULL * static_cast<std::uint64_t>(step) +
                                                  static_cast<std::uint64_t>(rank) + 17);
  const auto all = torch::randint(0, config.vocabulary, {rows, config.sequence + 1}, generator,
                                  torch::TensorOptions().dtype(torch::kLong));
  return {all.narrow(1, 0, config.sequence).contiguous(),
          all.narrow(1, 1, config.sequence).contiguous()};
}

/// Mean cross entropy of logits [B, T, V] against targets [B, T].
inline torch::Tensor tiny_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

}  // namespace convoy::test
