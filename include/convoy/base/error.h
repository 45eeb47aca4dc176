// The one exception type of Convoy: what kind of failure, which rank is to blame, and a full
// sentence.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace convoy {

/// What went wrong, for a caller that wants to react. The text of an Error says the rest.
enum class ErrorKind {
  kInvalidArgument,  ///< A value given by the caller cannot work; nothing was done or lost.
  kMisuse,           ///< A call in the wrong order or state (for example forward on a freed unit).
  kMismatch,         ///< Ranks disagree: other operation, shape, dtype, parameter list or order.
  kPeerLost,         ///< A rank died, left early or was stopped.
  kTimeout,          ///< A rank is alive but did not arrive within the time limit.
  kFailed,           ///< The communicator or wrapper failed earlier; the first cause is quoted.
  kProtocol,         ///< A peer sent something that is not ours (wrong version, junk, too large).
  kMemory,           ///< Not enough memory, or a limit (RLIMIT_FSIZE, cgroup) stands in the way.
  kSystem,           ///< A system call failed; errno is named.
  kInternal,         ///< A broken promise inside Convoy: please report.
};

/// The kind as the lower-case word used in logs and JSON, for example "peer_lost".
std::string_view to_string(ErrorKind kind) noexcept;

/// A failure, thrown in the thread of the caller. Immutable and copyable.
/// `rank()` is the rank to blame in the world of the communicator that failed, or -1 when no single
/// rank is.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int rank = -1)
      : std::runtime_error(message), kind_(kind), rank_(rank) {}

  ErrorKind kind() const noexcept { return kind_; }
  int rank() const noexcept { return rank_; }

 private:
  ErrorKind kind_;
  int rank_;
};

/// Throws Error{kSystem} with "<what>: <strerror(error_number)>".
[[noreturn]] void throw_system_error(std::string_view what, int error_number);

}  // namespace convoy
