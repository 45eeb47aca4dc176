// A trainable parameter under its original name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace convoy::ddp {

/// A handle: copies share the tensor.
struct Parameter {
  std::string name;  ///< As in the model, for example "blocks.0.attn.weight".
  at::Tensor tensor;
};

}  // namespace convoy::ddp
