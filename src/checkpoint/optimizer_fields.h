// What each known optimizer keeps for a parameter, in one form.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace convoy::saving {

enum class OptimizerFamily { kAdam, kAdamW, kSgd };

/// The names of state tensors, of all families.
inline constexpr std::array<std::string_view, 4> kFieldNames{"exp_avg", "exp_avg_sq",
                                                             "max_exp_avg_sq", "momentum_buffer"};
inline constexpr std::size_t kMaxExpAvgSq = 2;
inline constexpr std::size_t kMomentumBuffer = 3;

/// The state of one parameter: fields that are not there are undefined.
struct OptimizerFields {
  std::int64_t step = 0;  ///< 0 for SGD.
  std::array<at::Tensor, kFieldNames.size()> tensors;
};

/// Error: kInvalidArgument for an optimizer of another kind.
OptimizerFamily family_of(const torch::optim::Optimizer& optimizer);

/// Whether every stepped parameter must have field `field`.
bool needs_field(OptimizerFamily family, const torch::optim::OptimizerOptions& options,
                 std::size_t field);
/// Whether it may.
bool has_field(OptimizerFamily family, std::size_t field);

OptimizerFields fields_of(OptimizerFamily family, const torch::optim::OptimizerParamState& state);
std::unique_ptr<torch::optim::OptimizerParamState> make_state(OptimizerFamily family,
                                                              const OptimizerFields& fields);

}  // namespace convoy::saving
