// Questions about a model whose answer must not depend on whether it is sharded.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// A parameter with its whole shape, whichever state its leaf is in.
struct WholeParameter {
  std::string name;                 ///< Original name, the first one if it is tied.
  at::Tensor leaf;                  ///< What an optimizer steps: this rank's slice if sharded.
  std::vector<std::int64_t> sizes;  ///< Of the whole parameter.
};

/// Every parameter of a plain, replicated or sharded model once, in order of registration.
std::vector<WholeParameter> whole_parameters(const torch::nn::Module& model);

/// Elements of all parameters, each tensor once, by their whole shapes.
std::int64_t count_parameters(const torch::nn::Module& model);

/// Parameters that get weight decay (two and more whole dimensions) and those that do not.
struct DecaySplit {
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> no_decay;
};
/// Splits by whole shapes: a sharded leaf may be 1-D where its parameter is a matrix.
DecaySplit split_by_decay(const torch::nn::Module& model);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::count_parameters;
using fsdp::split_by_decay;
}  // namespace convoy
