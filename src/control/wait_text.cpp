// Texts of waits that ended early.
#include "control/wait_text.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <cmath>

namespace convoy {

std::string name_keys(std::span<const std::string> keys, std::size_t count) {
  constexpr std::size_t kShown = 8;
  constexpr std::size_t kShownBytes = 100;
  const auto shown = std::min(keys.size(), kShown);
  std::string text = count == 1 ? "key " : "keys ";
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == count ? " and " : ", ";
    text += concat("'", keys[i].substr(0, kShownBytes), "'");
  }
  if (count > shown) text += concat(" and ", count - shown, " more");
  return text;
}

std::string name_wait(std::chrono::nanoseconds limit) {
  const double seconds = std::chrono::duration<double>(limit).count();
  if (seconds < 1) return concat(std::lround(seconds * 1000), " ms");
  const auto tenths = std::lround(seconds * 10);
  return concat(tenths / 10, ".", tenths % 10, " s");
}

Error keys_missing(std::span<const std::string> keys, std::size_t count,
                   std::chrono::nanoseconds limit, const std::string& facts) {
  return Error(ErrorKind::kTimeout,
               concat("store: no ", name_keys(keys, count), " after ", name_wait(limit), facts));
}

Error wait_failed(const Error& failure, const std::string& waited_for) {
  return Error(failure.kind(), concat(failure.what(), " (while waiting for ", waited_for, ")"),
               failure.rank());
}

}  // namespace convoy
