// Forward and first weights of the network.
#include "programs/train_gpt/gpt.h"

#include "convoy/base/check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <string_view>

namespace convoy::train_gpt {
namespace {

torch::nn::LayerNorm layer_norm(std::int64_t dim) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}));
}

at::ScalarType scalar_type(ComputeDtype dtype) {
  return dtype == ComputeDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

/// Computes in the dtype of `x`.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  const at::Tensor bias = layer->bias.defined() ? layer->bias.to(x.scalar_type()) : at::Tensor();
  return at::linear(x, layer->weight.to(x.scalar_type()), bias);
}

bool ends_with(std::string_view name, std::string_view end) { return name.ends_with(end); }

/// Draws every parameter of the module in registration order from one generator.
void initialise(torch::nn::Module& module, std::int64_t layers, std::uint64_t seed) {
  at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
  for (auto& item : module.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (ends_with(item.key(), "bias")) {
      parameter.zero_();
    } else if (parameter.dim() == 1) {
      parameter.fill_(1.0);  // The scale of a norm.
    } else if (ends_with(item.key(), "proj.weight") || ends_with(item.key(), "down.weight")) {
      parameter.normal_(0.0, residual, generator);
    } else {
      parameter.normal_(0.0, 0.02, generator);
    }
  }
}

}  // namespace

BlockImpl::BlockImpl(std::int64_t dim, std::int64_t heads_)
    : heads(heads_),
      ln1(register_module("ln1", layer_norm(dim))),
      ln2(register_module("ln2", layer_norm(dim))),
      qkv(register_module("qkv", torch::nn::Linear(dim, 3 * dim))),
      proj(register_module("proj", torch::nn::Linear(dim, dim))),
      up(register_module("up", torch::nn::Linear(dim, 4 * dim))),
      down(register_module("down", torch::nn::Linear(4 * dim, dim))) {}

at::Tensor BlockImpl::forward(at::Tensor x) {
  const std::int64_t rows = x.size(0);
  const std::int64_t tokens = x.size(1);
  const std::int64_t dim = x.size(2);
  auto parts = linear(qkv, ln1(x)).chunk(3, -1);
  for (at::Tensor& part : parts) {
    part = part.view({rows, tokens, heads, dim / heads}).transpose(1, 2);
  }
  const at::Tensor attended = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  x = x + linear(proj, attended.transpose(1, 2).reshape({rows, tokens, dim}));
  return x + linear(down, at::gelu(linear(up, ln2(x)), "tanh"));
}

GPTImpl::GPTImpl(const ModelConfig& config_, std::uint64_t seed)
    : config(config_),
      tok(register_module("tok", torch::nn::Embedding(config.vocab, config.dim))),
      pos(register_module("pos", torch::nn::Embedding(config.seq, config.dim))),
      ln(nullptr) {
  auto list = register_module("blocks", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks.emplace_back(config.dim, config.heads);
    list->push_back(blocks.back());
  }
  ln = register_module("ln", layer_norm(config.dim));
  if (!config.tie_embeddings) {
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(config.dim, config.vocab).bias(false)));
  }
  initialise(*this, config.layers, seed);
}

at::Tensor GPTImpl::forward(at::Tensor tokens) {
  CONVOY_REQUIRE(tokens.dim() == 2 && tokens.size(1) <= config.seq, kInvalidArgument,
                 "the model takes [rows, up to ", config.seq, "] tokens, got ", tokens.sizes());
  const at::ScalarType dtype = scalar_type(config.dtype);
  // Once, so that the two gradients of a tied one are added in this dtype under every strategy.
  const at::Tensor table = tok->weight.to(dtype);
  at::Tensor x = at::embedding(table, tokens) +
                 at::embedding(pos->weight.to(dtype), at::arange(tokens.size(1), at::kLong));
  for (Block& block : blocks) x = block(x);
  x = ln(x);
  return (config.tie_embeddings ? at::linear(x, table) : linear(head, x)).to(at::kFloat);
}

}  // namespace convoy::train_gpt
