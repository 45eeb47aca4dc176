// Throws for a broken promise inside Convoy.
#include "convoy/base/check.h"

namespace convoy::detail {

void fail_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorKind::kInternal,
              concat("internal error at ", file, ":", line, ": (", condition, ") is false",
                     message.empty() ? "" : ": ", message, "; please report this"));
}

}  // namespace convoy::detail
