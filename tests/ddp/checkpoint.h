// Activation checkpointing as users write it: a node that runs a backward of its own.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace convoy::test {

using Segment = std::function<torch::Tensor(const torch::Tensor&)>;

/// Runs `segment` without recording, and again with recording when its gradient is wanted.
class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  /// `segment` outlives the graph.
  static torch::Tensor run(const torch::Tensor& input, const Segment& segment) {
    return apply(input, reinterpret_cast<std::int64_t>(&segment));
  }

  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input, std::int64_t segment) {
    context->save_for_backward({input});
    context->saved_data["segment"] = segment;
    return (*reinterpret_cast<const Segment*>(segment))(input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto segment = context->saved_data["segment"].toInt();
    const torch::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode recording(true);
    const auto output = (*reinterpret_cast<const Segment*>(segment))(input);
    const at::AutoGradMode plain(false);
    output.backward(grads[0]);
    return {input.grad(), torch::Tensor()};
  }
};

/// A stack of blocks that can be checkpointed each.
class StackImpl : public torch::nn::Module {
 public:
  explicit StackImpl(bool checkpoints) : checkpoints_(checkpoints) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(register_module("layer_" + std::to_string(i), torch::nn::Linear(5, 5)));
      segments_.push_back([layer = layers_.back()](const torch::Tensor& x) mutable {
        return torch::tanh(layer(x));
      });
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const Segment& segment : segments_) {
      x = checkpoints_ ? Checkpoint::run(x, segment) : segment(x);
    }
    return x;
  }

 private:
  bool checkpoints_;
  std::vector<torch::nn::Linear> layers_;
  std::vector<Segment> segments_;
};

}  // namespace convoy::test
