// Shared memory without a name: reserving pages of a memory file, and mapping them.
#pragma once

#include "convoy/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>

namespace convoy {

/// A range of a segment in this process's memory; unmapped with its last owner. It lies in the
/// address space as the range lies in the segment, so that huge pages fit both.
class Mapping {
 public:
  /// Error: kMemory.
  Mapping(int fd, std::uint64_t offset, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// Maps each range once for all who share this object: ranks that are threads of one process then
/// use the same addresses, so that tools see their races. Thread-safe.
class MappingCache {
 public:
  /// Error: kMemory.
  std::shared_ptr<Mapping> map(int fd, std::uint64_t offset, std::size_t bytes);

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // device, inode, offset
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Mapping>> mappings_;
};

/// The memory file of one group. It can grow but never shrink, and only reserved ranges are
/// touched, so that no access can raise SIGBUS. It has no name, and is gone with the last process
/// that has it open or mapped.
class Segment {
 public:
  /// Error: kSystem saying what to do.
  static Segment create();
  /// Takes a descriptor that came from a peer. Error: kProtocol if it is not a segment of at least
  /// `bytes` that is sealed against shrinking.
  static Segment adopt(Fd fd, std::uint64_t bytes);

  int fd() const noexcept { return fd_.get(); }
  /// Makes pages for the range, zeroed where there were none; huge ones where the kernel has them,
  /// for which `mapped` is where the range lies in this process (not looked at below the size of
  /// one). Returns 0 or errno: EFBIG for RLIMIT_FSIZE (its signal is held back), ENOSPC or ENOMEM
  /// for want of memory.
  int reserve(std::uint64_t offset, std::uint64_t bytes, std::byte* mapped) noexcept;
  /// Gives the pages back; the range must not be touched any more.
  void release(std::uint64_t offset, std::uint64_t bytes) noexcept;

 private:
  explicit Segment(Fd fd) : fd_(std::move(fd)) {}
  int fill(std::uint64_t offset, std::uint64_t bytes) noexcept;
  Fd fd_;
};

/// Bytes of memory that this process could still take: the least of what the machine has and what
/// the memory cgroups above it allow.
std::int64_t available_memory();

/// RLIMIT_FSIZE in bytes, or the largest number.
std::int64_t file_size_limit() noexcept;

}  // namespace convoy
