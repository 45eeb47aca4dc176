// Anonymous private memory whose pages can be given back without giving up its addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy::fsdp {

/// A mapping of zero pages. Reading after drop() gives zeros, never a signal.
class PrivateMapping {
 public:
  /// Error: kMemory naming the bytes when the kernel refuses.
  explicit PrivateMapping(std::size_t bytes);
  ~PrivateMapping();
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  void drop() noexcept;
  /// Bytes of pages that are in memory now (mincore).
  std::int64_t resident_bytes() const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace convoy::fsdp
