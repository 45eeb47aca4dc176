// The two kinds of unit storage.
#include "unit_storage.h"

#include "convoy/base/check.h"
#include "private_mapping.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace convoy::fsdp {
namespace {

class SharedStorage final : public UnitStorage {
 public:
  SharedStorage(Communicator& comm, at::Tensor region, std::int64_t slice_numel)
      : UnitStorage(region, region.narrow(0, comm.rank() * slice_numel, slice_numel)),
        comm_(comm) {}

  bool filled() const noexcept override { return true; }
  GatherInFlight begin_gather(const std::string&) override { return {}; }
  void finish_gather(GatherInFlight) override {}
  void drop() noexcept override {}
  std::int64_t resident_bytes() const override { return 0; }

  void scatter_from_first(const at::Tensor& full_values, const std::string& tag) override {
    const at::NoGradGuard no_grad;
    comm_.barrier({.tag = tag})->wait();  // nobody writes its slice any more
    if (comm_.rank() == 0) full().copy_(full_values);
    comm_.barrier({.tag = tag})->wait();
  }

 private:
  Communicator& comm_;
};

at::Tensor tensor_over(const std::shared_ptr<PrivateMapping>& mapping, std::int64_t numel,
                       at::ScalarType dtype) {
  if (numel == 0) return at::empty({0}, dtype);
  return at::from_blob(
      mapping->data(), {numel}, [mapping](void*) {}, at::TensorOptions(dtype));
}

class PrivateStorage final : public UnitStorage {
 public:
  PrivateStorage(Communicator& comm, std::shared_ptr<PrivateMapping> mapping, at::Tensor shard)
      : UnitStorage(tensor_over(mapping, shard.numel() * comm.size(), shard.scalar_type()), shard),
        comm_(comm),
        mapping_(std::move(mapping)) {}

  bool filled() const noexcept override { return filled_; }

  GatherInFlight begin_gather(const std::string& tag) override {
    filled_ = false;
    return {comm_.all_gather(full(), shard(), {.tag = tag})};
  }

  void finish_gather(GatherInFlight flight) override {
    flight.work->wait();
    filled_ = true;
  }

  void drop() noexcept override {
    filled_ = false;
    mapping_->drop();
  }

  std::int64_t resident_bytes() const override { return mapping_->resident_bytes(); }

  void scatter_from_first(const at::Tensor& full_values, const std::string& tag) override {
    const at::NoGradGuard no_grad;
    if (comm_.rank() == 0) full().copy_(full_values);
    comm_.broadcast(full(), 0, {.tag = tag})->wait();
    shard().copy_(full().narrow(0, comm_.rank() * shard().numel(), shard().numel()));
    drop();
  }

 private:
  Communicator& comm_;
  std::shared_ptr<PrivateMapping> mapping_;
  bool filled_ = false;
};

}  // namespace

std::unique_ptr<UnitStorage> make_shared_storage(Communicator& comm, std::int64_t slice_numel,
                                                 at::ScalarType dtype, const std::string& tag) {
  at::Tensor region = comm.allocate_shared(slice_numel * comm.size(), dtype, {.tag = tag});
  return std::make_unique<SharedStorage>(comm, std::move(region), slice_numel);
}

std::unique_ptr<UnitStorage> make_private_storage(Communicator& comm, std::int64_t slice_numel,
                                                  at::ScalarType dtype, const std::string& tag) {
  at::Tensor shard = comm.allocate(slice_numel, dtype, {.tag = tag});
  const std::int64_t bytes = shard.element_size() * slice_numel * comm.size();
  return std::make_unique<PrivateStorage>(
      comm, std::make_shared<PrivateMapping>(static_cast<std::size_t>(bytes)), std::move(shard));
}

}  // namespace convoy::fsdp
