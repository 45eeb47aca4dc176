// Where the memory of one training rank goes: tracked parts, and the rest that no part explains.
#pragma once

#include "convoy/flat/shard_span.h"
#include "convoy/profile/process_memory.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace convoy::profile {

/// Bytes of one rank. The parts are measured one by one, each where it is made: none is what is
/// left after taking others away. Only `other()` is, and it says so.
///
/// Shared memory: a part counts the bytes that this rank owns, so that each byte counts once on a
/// machine: its own slice of sharded parameters, its own gradient buckets. The system's rss counts
/// every shared page that the rank has touched, its peers' too; pss divides them.
struct MemoryReport {
  ProcessMemory process;
  std::int64_t parameters = 0;  ///< Of the leaves that the optimizer steps.
  std::int64_t gradients = 0;   ///< As the optimizer found them.
  std::int64_t optimizer = 0;   ///< Its state tensors.
  std::int64_t buffers = 0;     ///< Of the module.
  /// The most that forward held beyond what stood before it: what autograd saved, and temporaries.
  std::int64_t activations_peak = 0;

  /// rss_peak less the parts and the mapped files: the unexplained rest. It holds the heap's slack,
  /// peers' shared pages, backward's temporaries, threads and tables. Negative when the parts did
  /// not stand at the same time.
  std::optional<std::int64_t> other() const;
};

/// Measures the parts now, on this rank: call it between backward and zero_grad, where gradients
/// are. `activations` is the most that a forward has held, if somebody has counted it (an
/// AllocationCounter's peak less what stood before).
MemoryReport memory_report(std::span<const ShardSpan> spans, const std::vector<at::Tensor>& buffers,
                           const torch::optim::Optimizer& optimizer, std::int64_t activations = 0);

/// Of a DistributedDataParallel or FullyShardedDataParallel model.
template <class Wrapped>
MemoryReport memory_report(Wrapped& model, const torch::optim::Optimizer& optimizer,
                           std::int64_t activations = 0) {
  const std::vector<ShardSpan> spans = model.shard_spans();
  return memory_report(std::span<const ShardSpan>(spans), model.module()->buffers(), optimizer,
                       activations);
}

/// Bytes of an optimizer's state tensors: torch's Adam, AdamW, SGD, RMSprop and Adagrad and ours.
/// The state of others is not found and counts 0.
std::int64_t optimizer_bytes(const torch::optim::Optimizer& optimizer);

/// Bytes of the tensors' elements; undefined ones count 0.
std::int64_t tensor_bytes(std::span<const at::Tensor> tensors);

}  // namespace convoy::profile

namespace convoy {
using profile::memory_report;
using profile::MemoryReport;
}  // namespace convoy
