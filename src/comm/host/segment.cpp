// Shared memory without a name, over memfd.
#include "comm/host/segment.h"

#include "base/held_signal.h"
#include "base/rounding.h"
#include "comm/host/memory_units.h"
#include "convoy/base/check.h"
#include "convoy/base/deadline.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE  // Linux 6.1; headers may be older than the kernel.
#define MADV_COLLAPSE 25
#endif

namespace convoy {
namespace {

// An address for `bytes` of a file from `offset` on that is as far into a huge page, and the room
// around it; null where there is none to be had.
struct Room {
  std::byte* begin = nullptr;
  std::byte* place = nullptr;
  std::size_t bytes = 0;
};

Room find_room(std::uint64_t offset, std::size_t bytes) {
  if (bytes < kHugePageBytes) return {};
  const std::size_t total = bytes + kHugePageBytes;
  void* const found =
      ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(found);
  auto* const begin = static_cast<std::byte*>(found);
  return {begin, begin + (offset - address) % kHugePageBytes, total};
}

void give_back_around(const Room& room, std::size_t bytes) {
  if (room.begin == nullptr) return;
  const auto before = static_cast<std::size_t>(room.place - room.begin);
  if (before > 0) ::munmap(room.begin, before);
  const auto used = before + round_up(bytes, kPageBytes);
  if (used < room.bytes) ::munmap(room.begin + used, room.bytes - used);
}

}  // namespace

Mapping::Mapping(int fd, std::uint64_t offset, std::size_t bytes) : bytes_(bytes) {
  const auto room = find_room(offset, bytes);
  void* address =
      ::mmap(room.place, bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | (room.place != nullptr ? MAP_FIXED : 0), fd, static_cast<off_t>(offset));
  const int error_number = errno;
  give_back_around(room, address != MAP_FAILED ? bytes : 0);
  CONVOY_REQUIRE(address != MAP_FAILED, kMemory, "cannot map ", bytes,
                 " bytes of shared memory: ", std::generic_category().message(error_number),
                 "; look at the limit of address space (ulimit -v) and vm.max_map_count");
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { ::munmap(data_, bytes_); }

std::shared_ptr<Mapping> MappingCache::map(int fd, std::uint64_t offset, std::size_t bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_system_error("looking at shared memory", errno);
  const std::lock_guard lock(mutex_);
  std::erase_if(mappings_, [](const auto& item) { return item.second.expired(); });
  auto& slot = mappings_[Key{status.st_dev, status.st_ino, offset}];
  auto mapping = slot.lock();
  if (!mapping) {
    mapping = std::make_shared<Mapping>(fd, offset, bytes);
    slot = mapping;
  }
  CONVOY_CHECK(mapping->bytes() == bytes, "a range of shared memory mapped with two sizes");
  return mapping;
}

Segment Segment::create() {
  Fd fd(::memfd_create("convoy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    const int error_number = errno;
    throw Error(
        ErrorKind::kSystem,
        concat("cannot create shared memory (memfd_create: ",
               std::generic_category().message(error_number),
               "); allow it in the sandbox's system call filter, or raise the limit of open "
               "files (ulimit -n)"));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    throw_system_error("sealing shared memory", errno);
  }
  return Segment(std::move(fd));
}

Segment Segment::adopt(Fd fd, std::uint64_t bytes) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat status {};
  CONVOY_REQUIRE(seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd.get(), &status) == 0 &&
                     std::cmp_greater_equal(status.st_size, bytes),
                 kProtocol, "the descriptor from rank 0 is not a segment of ", bytes, " bytes");
  return Segment(std::move(fd));
}

// Memory files are on huge pages at their owner's wish only, and only after the fact
// (MADV_COLLAPSE, whatever shmem_enabled says): one small page is made for each huge one, which
// then takes its place, zeroed: 0.2 ms, against 0.8 ms for 512 small ones. Where other programs
// keep the processors busy or memory has to be moved together it takes many times that, so what the
// kernel refuses or is slow with is left on small pages.
int Segment::reserve(std::uint64_t offset, std::uint64_t bytes, std::byte* mapped) noexcept {
  if (bytes == 0) return 0;
  const FileSizeSignalHeld held;
  const auto end = offset + bytes;
  const auto patience = Deadline::after(std::chrono::milliseconds(20) +
                                        std::chrono::milliseconds(2) *
                                            static_cast<std::int64_t>(bytes / kHugePageBytes));
  for (auto at = round_up(offset, kHugePageBytes); at + kHugePageBytes <= end;
       at += kHugePageBytes) {
    // The last page of each, so that the file ends behind it.
    if (fill(at + kHugePageBytes - kPageBytes, kPageBytes) != 0 ||
        ::madvise(mapped + (at - offset), kHugePageBytes, MADV_COLLAPSE) != 0 ||
        patience.expired()) {
      break;
    }
  }
  return fill(offset, bytes);
}

int Segment::fill(std::uint64_t offset, std::uint64_t bytes) noexcept {
  while (::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

void Segment::release(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (bytes == 0) return;
  static_cast<void>(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

std::int64_t file_size_limit() noexcept {
  rlimit limit{};
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMost;
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(kMost)));
}

}  // namespace convoy
