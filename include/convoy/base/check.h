// Checks that throw a convoy::Error with a message built from the values at hand.
#pragma once

#include "convoy/base/error.h"

#include <sstream>
#include <string>

namespace convoy {

/// Joins its arguments as text: concat("rank ", 3, " of ", 4).
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

namespace detail {
[[noreturn]] void fail_internal(const char* file, int line, const char* condition,
                                const std::string& message);
}  // namespace detail

}  // namespace convoy

/// A condition on what the caller gave. Throws Error{kind} with the message alone.
#define CONVOY_REQUIRE(condition, kind, ...)                                           \
  do {                                                                                 \
    if (!(condition)) [[unlikely]] {                                                   \
      throw ::convoy::Error(::convoy::ErrorKind::kind, ::convoy::concat(__VA_ARGS__)); \
    }                                                                                  \
  } while (false)

/// A condition on Convoy itself. Throws Error{kInternal} with place and condition.
#define CONVOY_CHECK(condition, ...)                                                    \
  do {                                                                                  \
    if (!(condition)) [[unlikely]] {                                                    \
      ::convoy::detail::fail_internal(__FILE__, __LINE__, #condition,                   \
                                      ::convoy::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                   \
  } while (false)
