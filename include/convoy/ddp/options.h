// Options and counters of DistributedDataParallel.
#pragma once

#include <cstdint>
#include <optional>

namespace convoy {

/// Must be the same on all ranks; compared when wrapping. Names and defaults are PyTorch's.
struct DistributedDataParallelOptions {
  /// Upper bound of a gradient bucket in MiB. Unset: 25, or what the communicator prefers if that
  /// is less (4 on the host backend), and the first bucket 1 so that it can start early. A
  /// parameter that is larger has a bucket of its own. The size never changes a result.
  std::optional<double> bucket_cap_mb = {};
  /// Upper bound of the first bucket in MiB. Unset: 1 if bucket_cap_mb is unset, else
  /// bucket_cap_mb.
  std::optional<double> first_bucket_cap_mb = {};
  /// Allows forwards that leave out parameters, different ones on different ranks too. A parameter
  /// that some rank used gets the sum of its gradients divided by the number of all ranks; one that
  /// no rank used keeps the gradient it has. Buckets after one that holds an unused parameter are
  /// reduced at the end of backward only.
  bool find_unused_parameters = false;
  /// Rank 0's buffers replace the others', when wrapping and at the first training forward after
  /// each synchronised backward. False leaves buffers alone, when wrapping too.
  bool broadcast_buffers = true;
};

/// Counters of one rank since construction or the last reset.
struct DistributedDataParallelStats {
  std::int64_t synchronised_backwards = 0;
  std::int64_t local_backwards = 0;   ///< Under no_sync.
  std::int64_t reduced_bytes = 0;     ///< Of all launched buckets.
  std::int64_t overlapped_bytes = 0;  ///< Launched before the last gradient was ready.
};

}  // namespace convoy
