// Small modules whose gradients are known, for FSDP's corner cases.
#pragma once

#include "convoy/fsdp/unit.h"

#include <torch/torch.h>

#include <functional>
#include <tuple>
#include <vector>

namespace convoy::test {

/// sum(w * factor): the gradient of w is `factor` everywhere.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(std::vector<std::int64_t> sizes = {5, 3})
      : weight(register_parameter("weight", torch::ones(sizes))) {}
  torch::Tensor forward(double factor) { return (weight * factor).sum(); }
  torch::Tensor weight;
};
using Scale = convoy::Unit<ScaleImpl>;

/// Two linear layers around a tanh; [B, 6] to [B, 6].
struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : up(register_module("up", torch::nn::Linear(6, 9))),
        down(register_module("down", torch::nn::Linear(9, 6))) {}
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up, down;
};
using Layer = convoy::Unit<LayerImpl>;

/// A stack of layers with a head of its own. `body` runs the layers, so that tests can run them in
/// ways of their own; by default one after the other.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int depth = 3) : head(register_module("head", torch::nn::Linear(6, 4))) {
    for (int i = 0; i < depth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer()));
    }
    body = [](StackImpl& self, torch::Tensor x) {
      for (auto& layer : self.layers) x = layer(x);
      return x;
    };
  }
  torch::Tensor forward(torch::Tensor x) { return head(body(*this, x)); }

  std::vector<Layer> layers;
  torch::nn::Linear head;
  std::function<torch::Tensor(StackImpl&, torch::Tensor)> body;
};
using Stack = convoy::Unit<StackImpl>;

}  // namespace convoy::test
