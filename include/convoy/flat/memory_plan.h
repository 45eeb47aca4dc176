// The bytes of one rank that follow from shapes and options alone. Pure arithmetic.
#pragma once

#include <cstdint>
#include <string>

namespace convoy {

/// Predicted before anything is allocated. The first four are what MemoryReport measures under the
/// same names; activations and what the system needs besides are not arithmetic and not in here.
struct MemoryPlan {
  std::int64_t parameters = 0;  ///< Of the leaves that the optimizer steps.
  std::int64_t gradients = 0;   ///< As the optimizer finds them.
  std::int64_t optimizer = 0;   ///< Its state tensors.
  std::int64_t buffers = 0;     ///< Of the module.
  /// Gathered parameters when most are: the root, units that stay gathered after forward, and the
  /// two largest of the others. 0 where gathers are shared: then the ranks of a machine read each
  /// other's shards.
  std::int64_t full_parameters = 0;
  /// Copies of the parameters in the lower dtype of mixed precision that are kept all the time.
  std::int64_t cast_parameters = 0;
  /// Gradients on their way, and what buckets need besides the gradients.
  std::int64_t gradient_buffers = 0;

  std::int64_t total() const {
    return parameters + gradients + optimizer + buffers + full_parameters + cast_parameters +
           gradient_buffers;
  }
};

/// "parameters 10.44, gradients 10.44, ... MiB", parts that are 0 left out.
std::string to_string(const MemoryPlan& plan);

/// What an optimizer keeps for every element of a trainable parameter, in the parameter's dtype:
/// 2 for Adam and AdamW, 1 for SGD with momentum, 0 for SGD without.
inline constexpr int kAdamStates = 2;

}  // namespace convoy
