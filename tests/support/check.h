// Checks for bodies that run as ranks in threads: Catch2's own assertions are not thread-safe, so
// these throw, and the exception ends the rank and then the test case.
#pragma once

#include "convoy/base/check.h"

#include <ATen/ATen.h>

#include <cstring>
#include <source_location>
#include <string>
#include <string_view>

namespace convoy::test {

/// Throws with place and message unless `condition` holds.
inline void check(bool condition, const std::string& message,
                  std::source_location place = std::source_location::current()) {
  if (!condition) {
    throw Error(ErrorKind::kInternal,
                concat("check failed at ", place.file_name(), ":", place.line(), ": ", message));
  }
}

/// Throws unless both are printable values that compare equal.
template <typename Left, typename Right>
void check_equal(const Left& left, const Right& right, const std::string& what = {},
                 std::source_location place = std::source_location::current()) {
  if (!(left == right)) check(false, concat(what, ": ", left, " is not ", right), place);
}

/// True if both tensors have the same shape, dtype and bits (so NaN equals the same NaN, and -0 is
/// not 0).
inline bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  if (left.defined() != right.defined()) return false;
  if (!left.defined()) return true;
  if (left.scalar_type() != right.scalar_type() || left.sizes() != right.sizes()) return false;
  const auto a = left.detach().contiguous();
  const auto b = right.detach().contiguous();
  return a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Throws unless the bits agree; the message names the first element that differs.
inline void check_same_bits(const at::Tensor& left, const at::Tensor& right,
                            const std::string& what = {},
                            std::source_location place = std::source_location::current()) {
  if (same_bits(left, right)) return;
  if (!left.defined() || !right.defined()) check(false, what + ": one is undefined", place);
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) {
    check(false, concat(what, ": ", left.sizes(), " against ", right.sizes()), place);
  }
  const auto a = left.detach().flatten();
  const auto b = right.detach().flatten();
  const auto bad = at::nonzero(a.ne(b));
  const auto first = bad.numel() > 0 ? bad[0].item<std::int64_t>() : 0;
  check(false,
        concat(what, ": ", bad.size(0), " of ", a.numel(), " elements differ, first at ", first,
               ": ", a[first].item<double>(), " against ", b[first].item<double>()),
        place);
}

/// Throws unless every element agrees to `tolerance`, relative to 1 or the larger value.
inline void check_close(const at::Tensor& left, const at::Tensor& right, double tolerance,
                        const std::string& what = {},
                        std::source_location place = std::source_location::current()) {
  check(left.defined() && right.defined(), what + ": undefined", place);
  check(left.sizes() == right.sizes(), concat(what, ": ", left.sizes(), " against ", right.sizes()),
        place);
  if (left.numel() == 0) return;
  const auto a = left.detach().to(at::kDouble);
  const auto b = right.detach().to(at::kDouble);
  const auto scale = at::maximum(a.abs(), b.abs()).clamp_min(1.0);
  const auto worst = ((a - b).abs() / scale).max().item<double>();
  check(worst <= tolerance, concat(what, ": differs by ", worst, ", allowed ", tolerance), place);
}

/// Calls `body` and returns the Error it throws; throws itself if there was none, if the kind is
/// another, or if `part` is not in the text.
template <typename Body>
Error check_throws(ErrorKind kind, std::string_view part, const Body& body,
                   std::source_location place = std::source_location::current()) {
  try {
    body();
  } catch (const Error& error) {
    check(error.kind() == kind,
          concat("kind ", to_string(error.kind()), " instead of ", to_string(kind), ": ",
                 error.what()),
          place);
    check(std::string_view(error.what()).find(part) != std::string_view::npos,
          concat("'", part, "' is not in: ", error.what()), place);
    return error;
  } catch (const std::exception& error) {
    check(false, concat("not a convoy::Error: ", error.what()), place);
  }
  check(false, concat("no error; expected one with '", part, "'"), place);
  throw Error(ErrorKind::kInternal, "unreachable");
}

}  // namespace convoy::test
