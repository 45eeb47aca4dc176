// Where the values of one unit live, and how the full buffer gets filled: shared or private memory.
#pragma once

#include "convoy/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace convoy::fsdp {

/// A gather that has been started. Moved once into finish_gather or abandon_gather.
struct GatherInFlight {
  WorkPtr work;  ///< Null where there is nothing to wait for.
};

/// The buffers of one unit. `shard()` is this rank's slice and always valid; `full()` keeps its
/// address for ever and is valid while filled().
class UnitStorage {
 public:
  UnitStorage(at::Tensor full, at::Tensor shard)
      : full_(std::move(full)), shard_(std::move(shard)) {}
  virtual ~UnitStorage() = default;

  const at::Tensor& full() const noexcept { return full_; }
  const at::Tensor& shard() const noexcept { return shard_; }

  virtual bool filled() const noexcept = 0;
  /// Starts to fill the full buffer from the ranks' slices. Collective in private memory.
  virtual GatherInFlight begin_gather(const std::string& tag) = 0;
  /// Waits; full() is valid after it.
  virtual void finish_gather(GatherInFlight flight) = 0;
  /// Gives the pages of the full buffer back, where they are private. Saved views stay mapped.
  virtual void drop() noexcept = 0;
  /// Bytes of full() that are in this process's own memory now, by the kernel's account.
  virtual std::int64_t resident_bytes() const = 0;
  /// Writes rank 0's `full_values` into every rank's slices. Collective; others pass anything.
  virtual void scatter_from_first(const at::Tensor& full_values, const std::string& tag) = 0;

 private:
  at::Tensor full_;
  at::Tensor shard_;
};

/// The full buffer is one region that all ranks map, and a rank's slice is a part of it: a gather
/// moves nothing. Who may write when is WriteWindow's business. Collective.
std::unique_ptr<UnitStorage> make_shared_storage(Communicator& comm, std::int64_t slice_numel,
                                                 at::ScalarType dtype, const std::string& tag);

/// Every rank gathers into memory of its own, whose pages drop() returns. Collective.
std::unique_ptr<UnitStorage> make_private_storage(Communicator& comm, std::int64_t slice_numel,
                                                  at::ScalarType dtype, const std::string& tag);

}  // namespace convoy::fsdp
