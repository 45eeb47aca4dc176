// A stack of blocks that can be checkpointed each.
#pragma once

#include "convoy/recompute/checkpoint.h"

#include <torch/torch.h>

#include <string>
#include <vector>

namespace convoy::test {

class StackImpl : public torch::nn::Module {
 public:
  explicit StackImpl(bool checkpoints) : checkpoints_(checkpoints) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(register_module("layer_" + std::to_string(i), torch::nn::Linear(5, 5)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers_) {
      auto block = [layer](const torch::Tensor& y) mutable { return torch::tanh(layer(y)); };
      x = checkpoints_ ? checkpoint(block, x) : block(x);
    }
    return x;
  }

 private:
  bool checkpoints_;
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace convoy::test
