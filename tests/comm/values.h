// Inputs that differ by rank and element, and what reductions of them must give, bit for bit.
#pragma once

#include "convoy/comm/types.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace convoy::test {

/// Values of `rank`: different for each element, rank and seed. Floating point values have full
/// mantissas, so that another order of adding shows.
inline at::Tensor values_of(int rank, std::int64_t numel, at::ScalarType dtype, int seed = 0) {
  const auto mixed = at::empty({numel}, at::TensorOptions().dtype(at::kInt));
  auto* value = mixed.mutable_data_ptr<int>();
  const auto shift = static_cast<std::uint64_t>(rank * 40503 + seed * 69069 + 12345);
  for (std::int64_t i = 0; i < numel; ++i) {
    value[i] = static_cast<int>((static_cast<std::uint64_t>(i) * 2654435761U + shift) % 65521U);
  }
  if (dtype == at::kBool) return mixed.remainder(3 + rank).eq(0);
  if (dtype == at::kByte) return mixed.remainder_(251).to(dtype);
  if (dtype == at::kInt) return mixed.mul_(32767);  // Sums of them overflow.
  if (dtype == at::kLong) return mixed.to(dtype).mul_(1000003).sub_(32000000000LL);
  return mixed.to(dtype == at::kDouble ? at::kDouble : at::kFloat).div_(7919.0).sub_(4.1).to(dtype);
}

/// The reduction as documented: wide, in rank order, divided once, rounded once.
inline at::Tensor reduced(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const auto dtype = inputs.front().scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = is_half ? at::kFloat : dtype;
  auto result = inputs.front().to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const auto next = inputs[r].to(wide);
    switch (op) {
      case ReduceOp::kMin: result = at::minimum(result, next); break;
      case ReduceOp::kMax: result = at::maximum(result, next); break;
      default: result = dtype == at::kBool ? result.logical_or(next) : result + next;
    }
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(inputs.size());
  return result.to(dtype);
}

inline at::Tensor reduced_values(int ranks, std::int64_t numel, at::ScalarType dtype, ReduceOp op,
                                 int seed = 0) {
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(values_of(r, numel, dtype, seed));
  return reduced(inputs, op);
}

}  // namespace convoy::test
