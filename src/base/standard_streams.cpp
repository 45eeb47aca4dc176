// Descriptors 0, 1 and 2.
#include "convoy/base/standard_streams.h"

#include <initializer_list>

#include <fcntl.h>
#include <unistd.h>

namespace convoy {

void hold_standard_streams() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is given out, and those below are taken. Kept open across exec.
    [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
  }
}

}  // namespace convoy
