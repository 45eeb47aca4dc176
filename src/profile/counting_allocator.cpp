// An allocator that notes each size in front of the block it returns.
#include "convoy/profile/counting_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstddef>
#include <new>

namespace convoy::profile {
namespace {

/// Stands in front of every block. As long as libtorch's alignment, so that blocks stay aligned.
struct alignas(64) Header {
  AllocationCounter* counter;  // Lives as long as the allocator, which lives for ever.
  std::int64_t bytes;
};
static_assert(sizeof(Header) == 64);

void release(void* block) {
  if (block == nullptr) return;
  auto* header = static_cast<Header*>(block) - 1;
  header->counter->remove(header->bytes);
  c10::free_cpu(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(std::shared_ptr<AllocationCounter> counter)
      : counter_(std::move(counter)) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    void* memory = c10::alloc_cpu(bytes + sizeof(Header));
    auto* header = new (memory) Header{counter_.get(), static_cast<std::int64_t>(bytes)};
    counter_->add(header->bytes);
    return {header + 1, header + 1, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  std::shared_ptr<AllocationCounter> counter_;
};

}  // namespace

void AllocationCounter::add(std::int64_t bytes) noexcept {
  const std::int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

std::shared_ptr<AllocationCounter> install_counting_allocator() {
  auto counter = std::make_shared<AllocationCounter>();
  // c10 takes ownership, and keeps it until the process ends.
  c10::SetCPUAllocator(std::make_unique<CountingAllocator>(counter).release(), /*priority=*/1);
  return counter;
}

}  // namespace convoy::profile
