// Sums of the tracked parts.
#include "convoy/profile/memory_report.h"

namespace convoy::profile {

std::optional<std::int64_t> MemoryReport::other() const {
  if (!process.rss_peak || !process.files) return std::nullopt;
  return *process.rss_peak - *process.files - parameters - gradients - optimizer - buffers -
         activations_peak;
}

std::int64_t tensor_bytes(std::span<const at::Tensor> tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace convoy::profile
