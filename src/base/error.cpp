// Names of error kinds, and errno as an Error.
#include "convoy/base/error.h"

#include "convoy/base/check.h"

#include <cerrno>
#include <system_error>

namespace convoy {

std::string_view to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid_argument";
    case ErrorKind::kMisuse: return "misuse";
    case ErrorKind::kMismatch: return "mismatch";
    case ErrorKind::kPeerLost: return "peer_lost";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kFailed: return "failed";
    case ErrorKind::kProtocol: return "protocol";
    case ErrorKind::kMemory: return "memory";
    case ErrorKind::kSystem: return "system";
    case ErrorKind::kInternal: return "internal";
  }
  return "unknown";
}

void throw_system_error(std::string_view what, int error_number) {
  const bool is_limit = error_number == EMFILE;
  throw Error(ErrorKind::kSystem, concat(what, ": ", std::generic_category().message(error_number),
                                         is_limit ? " (raise the limit: ulimit -n)" : ""));
}

}  // namespace convoy
