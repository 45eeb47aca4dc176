// Descriptors: closing, duplicating, memory files and event counters.
#include "convoy/base/fd.h"

#include "base/held_signal.h"
#include "convoy/base/check.h"

#include <cerrno>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

namespace convoy {
void Fd::reset(int fd) noexcept {
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int saved = errno;
  ::close(old);
  errno = saved;
}

Fd Fd::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw_system_error("duplicating a descriptor", errno);
  return Fd(copy);
}

Fd make_memory_file(std::string_view name, std::size_t bytes) {
  Fd file(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_system_error("creating shared memory (memfd_create)", errno);
  const FileSizeSignalHeld held;
  int result = 0;
  do {
    // posix_fallocate would fall back to writing pages; this reserves or fails.
    result = bytes == 0 ? 0 : ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error_number = errno;
    const bool is_full = error_number == ENOSPC || error_number == EFBIG || error_number == ENOMEM;
    CONVOY_REQUIRE(!is_full, kMemory, "cannot reserve ", bytes,
                   " bytes of shared memory: ", std::generic_category().message(error_number),
                   "; free memory, or raise the limit (ulimit -f, memory cgroup)");
    throw_system_error("reserving shared memory (fallocate)", error_number);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw_system_error("sealing shared memory", errno);
  }
  return file;
}

Fd make_event_fd() {
  Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw_system_error("creating an eventfd", errno);
  return event;
}

}  // namespace convoy
