// What distributed training must equal: one process that adds the ranks' gradients in rank order.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace convoy::test {

/// Runs `backward(rank)` for ranks 0..world-1 one after the other on `parameters` (each call leaves
/// that rank's gradients in .grad()), then sets .grad() to the sum in rank order divided once by
/// `world`. A parameter that some rank used counts as zero on the others; one that none used keeps
/// an undefined gradient. Returns nothing; the caller steps the optimizer. Leaves the calling
/// thread with one thread for kernels, as every rank has: how many there are decides how sums are
/// cut.
inline void mean_gradients(const std::vector<at::Tensor>& parameters, int world,
                           const std::function<void(int)>& backward) {
  at::set_num_threads(1);
  std::vector<at::Tensor> sums(parameters.size());
  for (int rank = 0; rank < world; ++rank) {
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    backward(rank);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      if (sums[i].defined()) {
        sums[i].add_(gradient);
      } else {
        sums[i] = gradient.clone();
      }
    }
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (sums[i].defined()) sums[i].div_(world);
    parameters[i].mutable_grad() = sums[i];
  }
}

}  // namespace convoy::test
