// Other processes, through pidfds and /proc.
#include "convoy/base/process.h"

#include "convoy/base/check.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace convoy {

Fd open_pidfd(pid_t pid) {
  // The kernel sets close-on-exec by itself.
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) throw_system_error(concat("watching process ", pid), errno);
  return pidfd;
}

std::optional<ProcessStatus> read_process_status(pid_t pid) {
  const Fd file(::open(concat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 1024> buffer;
  const auto count = ::read(file.get(), buffer.data(), buffer.size() - 1);
  if (count <= 0) return std::nullopt;
  buffer[static_cast<std::size_t>(count)] = '\0';
  // "pid (name) state ppid ... starttime": the name may hold spaces and brackets, so the fields are
  // counted from the last ')'. Start time is field 22 of proc(5), the 19th behind the state.
  const std::string_view text(buffer.data(), static_cast<std::size_t>(count));
  const auto close = text.rfind(')');
  if (close == std::string_view::npos) return std::nullopt;
  ProcessStatus status;
  int parent = 0;
  unsigned long long start = 0;
  const int fields = std::sscanf(buffer.data() + close + 1,
                                 " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                 "%*s %*s %*s %llu",
                                 &status.state, &parent, &start);
  if (fields != 3) return std::nullopt;
  status.parent = parent;
  status.start_ticks = start;
  return status;
}

}  // namespace convoy
