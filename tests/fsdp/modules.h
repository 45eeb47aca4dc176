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

/// Runs `inner` without a graph and once more with one in backward, as checkpointing does.
class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  using Inner = std::function<torch::Tensor(torch::Tensor)>;

  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               std::shared_ptr<Inner> inner) {
    context->save_for_backward({x});
    context->saved_data["inner"] = static_cast<std::int64_t>(kept().size());
    kept().push_back(inner);
    const torch::NoGradGuard no_grad;
    return (*inner)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const auto inner = kept()[static_cast<std::size_t>(context->saved_data["inner"].toInt())];
    torch::Tensor y;
    {
      const torch::AutoGradMode with_graph(true);
      y = (*inner)(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), torch::Tensor()};
  }

 private:
  static std::vector<std::shared_ptr<Inner>>& kept() {
    thread_local std::vector<std::shared_ptr<Inner>> all;
    return all;
  }
};

inline torch::Tensor checkpoint(Checkpoint::Inner inner, const torch::Tensor& x) {
  return Checkpoint::apply(x, std::make_shared<Checkpoint::Inner>(std::move(inner)));
}

}  // namespace convoy::test
