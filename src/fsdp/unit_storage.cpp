// The two kinds of unit storage.
#include "unit_storage.h"

#include "convoy/base/check.h"
#include "kept_gather.h"
#include "private_mapping.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

namespace convoy::fsdp {
namespace {

at::Tensor slice_of(const at::Tensor& full, const Communicator& comm) {
  const std::int64_t numel = full.numel() / comm.size();
  return full.narrow(0, comm.rank() * numel, numel);
}

class SharedStorage final : public UnitStorage {
 public:
  SharedStorage(Communicator& comm, at::Tensor master, at::Tensor compute)
      : UnitStorage(master, std::move(compute), slice_of(master, comm)), comm_(comm) {
    if (is_mixed()) cast_slice_ = slice_of(this->compute(), comm);
  }

  bool filled() const noexcept override { return true; }
  void publish() override {
    if (!is_mixed()) return;
    const at::NoGradGuard no_grad;
    cast_slice_.copy_(shard());
  }
  GatherInFlight begin_gather(Values values, const std::string&) override {
    return {.work = {}, .kept = {}, .values = values};
  }
  void finish_gather(GatherInFlight) override {}
  void drop() noexcept override {}
  std::int64_t resident_bytes() const override { return 0; }
  std::int64_t cast_bytes() const noexcept override {
    return cast_slice_.defined() ? static_cast<std::int64_t>(cast_slice_.nbytes()) : 0;
  }

  void scatter_from_first(const at::Tensor& values, const std::string& tag) override {
    const at::NoGradGuard no_grad;
    comm_.barrier({.tag = tag})->wait();  // nobody writes its slice any more
    if (comm_.rank() == 0) master().copy_(values);
    comm_.barrier({.tag = tag})->wait();
  }

 private:
  Communicator& comm_;
  at::Tensor cast_slice_;  ///< This rank's part of compute(), where it is another buffer.
};

/// Pages of this process alone, as a tensor.
struct PrivateBuffer {
  PrivateBuffer(std::int64_t numel, at::ScalarType dtype)
      : mapping(std::make_shared<PrivateMapping>(static_cast<std::size_t>(numel) *
                                                 c10::elementSize(dtype))),
        tensor(numel == 0 ? at::empty({0}, dtype)
                          : at::from_blob(
                                mapping->data(), {numel}, [keep = mapping](void*) {},
                                at::TensorOptions(dtype))) {}

  std::shared_ptr<PrivateMapping> mapping;
  at::Tensor tensor;
};

class PrivateStorage final : public UnitStorage {
 public:
  PrivateStorage(Communicator& comm, const PrivateBuffer& master, const PrivateBuffer& compute,
                 at::Tensor shard, const StoragePlan& plan)
      : UnitStorage(master.tensor, compute.tensor, std::move(shard)),
        comm_(comm),
        master_mapping_(master.mapping),
        compute_mapping_(compute.mapping) {
    if (!is_mixed()) return;
    cast_slice_ = comm.allocate(this->shard().numel(), plan.precision.compute_dtype,
                                {.tag = plan.tag + " (cast)"});
    const auto& kept = plan.precision.kept;
    if (std::find(kept.begin(), kept.end(), true) == kept.end()) return;
    kept_.emplace(comm, plan.layout, kept, plan.dtype, plan.tag + " (kept)");
  }

  bool filled() const noexcept override { return filled_; }
  void publish() override {}

  GatherInFlight begin_gather(Values values, const std::string& tag) override {
    const at::NoGradGuard no_grad;
    filled_ = false;
    GatherInFlight flight;
    flight.values = values;
    if (values == Values::kMaster || !is_mixed()) {
      flight.work = comm_.all_gather(master(), shard(), {.tag = tag});
      return flight;
    }
    cast_slice_.copy_(shard());
    flight.work = comm_.all_gather(compute(), cast_slice_, {.tag = tag});
    if (kept_) flight.kept = kept_->begin(comm_, shard(), tag + " (kept)");
    return flight;
  }

  void finish_gather(GatherInFlight flight) override {
    flight.work->wait();
    if (flight.kept) {
      flight.kept->wait();
      const at::NoGradGuard no_grad;
      kept_->finish(master());
    }
    filled_ = flight.values == Values::kCompute || !is_mixed();
  }

  void drop() noexcept override {
    filled_ = false;
    master_mapping_->drop();
    if (is_mixed()) compute_mapping_->drop();
  }

  std::int64_t resident_bytes() const override {
    return master_mapping_->resident_bytes() +
           (is_mixed() ? compute_mapping_->resident_bytes() : 0);
  }
  std::int64_t cast_bytes() const noexcept override {
    return cast_slice_.defined() ? static_cast<std::int64_t>(cast_slice_.nbytes()) : 0;
  }

  void scatter_from_first(const at::Tensor& values, const std::string& tag) override {
    const at::NoGradGuard no_grad;
    if (comm_.rank() == 0) master().copy_(values);
    comm_.broadcast(master(), 0, {.tag = tag})->wait();
    shard().copy_(slice_of(master(), comm_));
    drop();
  }

 private:
  Communicator& comm_;
  std::shared_ptr<PrivateMapping> master_mapping_;
  std::shared_ptr<PrivateMapping> compute_mapping_;  ///< The same without mixed precision.
  at::Tensor cast_slice_;                            ///< Staging for the gather: the peers read it.
  std::optional<KeptGather> kept_;                   ///< Where some parameters are kept.
  bool filled_ = false;
};

}  // namespace

std::unique_ptr<UnitStorage> make_shared_storage(Communicator& comm, const StoragePlan& plan) {
  const std::int64_t numel = plan.layout.total_numel();
  const at::Tensor master = comm.allocate_shared(numel, plan.dtype, {.tag = plan.tag});
  at::Tensor compute = master;
  if (plan.precision.compute_dtype != plan.dtype) {
    compute =
        comm.allocate_shared(numel, plan.precision.compute_dtype, {.tag = plan.tag + " (cast)"});
  }
  return std::make_unique<SharedStorage>(comm, master, std::move(compute));
}

std::unique_ptr<UnitStorage> make_private_storage(Communicator& comm, const StoragePlan& plan) {
  at::Tensor shard = comm.allocate(plan.layout.slice_numel, plan.dtype, {.tag = plan.tag});
  const std::int64_t numel = plan.layout.total_numel();
  const PrivateBuffer master(numel, plan.dtype);
  const bool mixed = plan.precision.compute_dtype != plan.dtype;
  const PrivateBuffer compute = mixed ? PrivateBuffer(numel, plan.precision.compute_dtype) : master;
  return std::make_unique<PrivateStorage>(comm, master, compute, std::move(shard), plan);
}

}  // namespace convoy::fsdp
