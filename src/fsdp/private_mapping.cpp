// mmap, madvise and mincore around one private mapping.
#include "private_mapping.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace convoy::fsdp {

PrivateMapping::PrivateMapping(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    const int error = errno;
    throw Error(ErrorKind::kMemory,
                concat("FSDP: cannot map ", bytes,
                       " bytes for a unit's full parameters: ", std::strerror(error)));
  }
  // Every gather faults in what was dropped: one fault for 512 pages. A wish, which the kernel may
  // not grant.
  ::madvise(data_, bytes, MADV_HUGEPAGE);
}

PrivateMapping::~PrivateMapping() {
  if (bytes_ > 0) ::munmap(data_, bytes_);
}

void PrivateMapping::drop() noexcept {
  if (bytes_ > 0) ::madvise(data_, bytes_, MADV_DONTNEED);
}

std::int64_t PrivateMapping::resident_bytes() const {
  if (bytes_ == 0) return 0;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes_ + page - 1) / page);
  if (::mincore(data_, bytes_, pages.data()) != 0) throw_system_error("mincore", errno);
  const auto resident =
      std::count_if(pages.begin(), pages.end(), [](unsigned char flags) { return flags & 1U; });
  return resident * static_cast<std::int64_t>(page);
}

}  // namespace convoy::fsdp
