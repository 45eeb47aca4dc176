// Where the values of one unit live, and how its full buffers get filled: shared or private memory.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/layout.h"
#include "precision_plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace convoy::fsdp {

/// Note [Two precisions]
/// The slice of a unit, which the optimizer steps, and `master()` are in the leaves' dtype;
/// `compute()` is what forward and backward read. Without mixed precision the last two are one
/// buffer. With it `compute()` is another one in the lower dtype, and parameters that are kept in
/// float32 are read at their places in `master()`.
/// - Shared memory: `compute()` is a region of its own. Each owner casts its slice into it when the
///   write window closes: after the optimizer's step and before it says that it has entered.
///   `master()` is always valid.
/// - Private memory: a gather casts the slice and gathers in the lower dtype; kept parameters are
///   gathered beside it (kept_gather.h). `master()` as a whole is filled for reading parameters
///   only.
enum class Values { kCompute, kMaster };

/// A gather that has been started. Moved once into finish_gather or abandon_gather.
struct GatherInFlight {
  WorkPtr work;  ///< Null where there is nothing to wait for.
  WorkPtr kept;  ///< The second gather of mixed precision, or null.
  Values values = Values::kCompute;
};

/// The buffers of one unit. `shard()` is this rank's slice and always valid; the others keep their
/// addresses for ever.
class UnitStorage {
 public:
  UnitStorage(at::Tensor master, at::Tensor compute, at::Tensor shard)
      : master_(std::move(master)), compute_(std::move(compute)), shard_(std::move(shard)) {}
  virtual ~UnitStorage() = default;

  const at::Tensor& master() const noexcept { return master_; }
  const at::Tensor& compute() const noexcept { return compute_; }
  const at::Tensor& shard() const noexcept { return shard_; }
  bool is_mixed() const noexcept { return !compute_.is_same(master_); }

  /// True if what forward and backward read is valid.
  virtual bool filled() const noexcept = 0;
  /// This rank has changed its slice, and now says so: see Note [Two precisions].
  virtual void publish() = 0;
  /// Starts to make `values` valid from the ranks' slices. Collective in private memory.
  virtual GatherInFlight begin_gather(Values values, const std::string& tag) = 0;
  virtual void finish_gather(GatherInFlight flight) = 0;
  /// Gives the pages of the full buffers back, where they are private. Saved views stay mapped.
  virtual void drop() noexcept = 0;
  /// Bytes of full buffers that are in this process's own memory now, by the kernel's account.
  virtual std::int64_t resident_bytes() const = 0;
  /// Bytes of parameters in the lower precision that this rank holds all the time.
  virtual std::int64_t cast_bytes() const noexcept = 0;
  /// Writes rank 0's `values` into every rank's slices. Collective; others pass anything.
  virtual void scatter_from_first(const at::Tensor& values, const std::string& tag) = 0;

 private:
  at::Tensor master_;
  at::Tensor compute_;
  at::Tensor shard_;
};

/// What the two kinds of storage are made from.
struct StoragePlan {
  const FlatLayout& layout;
  at::ScalarType dtype;  ///< Of the leaves.
  const UnitPrecision& precision;
  std::string tag;
};

/// The full buffers are regions that all ranks map, and a rank's slice is a part of one: a gather
/// moves nothing. Who may write when is WriteWindow's business. Collective.
std::unique_ptr<UnitStorage> make_shared_storage(Communicator& comm, const StoragePlan& plan);

/// Every rank gathers into memory of its own, whose pages drop() returns. Collective.
std::unique_ptr<UnitStorage> make_private_storage(Communicator& comm, const StoragePlan& plan);

}  // namespace convoy::fsdp
