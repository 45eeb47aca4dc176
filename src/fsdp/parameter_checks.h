// Refuses parameters that cannot be sharded, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace convoy::fsdp {

struct NamedParameter {
  std::string name;  ///< Original name in the model, the first one if it is tied.
  at::Tensor tensor;
};

/// Error: kInvalidArgument for a parameter that is not a dense leaf of float32 or float64 on the
/// CPU (or on the meta device, if `meta_allowed`) or that has a gradient.
void require_shardable(const NamedParameter& parameter, bool meta_allowed);

/// Error: kInvalidArgument for two parameters that are different tensors over the same memory: once
/// sharded they would drift apart.
void require_no_overlap(const std::vector<NamedParameter>& parameters);

}  // namespace convoy::fsdp
