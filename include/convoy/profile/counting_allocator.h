// Counts the bytes of CPU tensors as libtorch allocates and frees them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace convoy::profile {

/// Bytes that are allocated now, and the most there were since the last reset. Exact: the bytes
/// that were asked for, of every allocation made through libtorch's CPU allocator since it was
/// installed. Shared memory (Communicator::allocate) and files are not among them. Thread-safe.
class AllocationCounter {
 public:
  std::int64_t current() const noexcept { return current_.load(std::memory_order_relaxed); }
  std::int64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
  /// The peak begins again at what is allocated now.
  void reset_peak() noexcept { peak_.store(current(), std::memory_order_relaxed); }

  void add(std::int64_t bytes) noexcept;
  void remove(std::int64_t bytes) noexcept { current_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// Puts a counting allocator in front of libtorch's CPU allocator for the rest of the process. For
/// programs, once, before the first tensor: a library must not change the allocator of its host.
/// Each allocation costs 64 bytes and two atomic additions more.
std::shared_ptr<AllocationCounter> install_counting_allocator();

}  // namespace convoy::profile
