// Formats times, endings and lists of ranks.
#include "programs/convoyrun/text.h"

#include "convoy/base/check.h"
#include "programs/convoyrun/signals.h"

#include <array>
#include <cstdio>

#include <limits.h>
#include <unistd.h>

namespace convoy::launcher {

std::string format_seconds(double seconds) {
  std::array<char, 32> text{};
  const int digits = seconds < 1 ? 3 : seconds < 10 ? 2 : 1;
  std::snprintf(text.data(), text.size(), "%.*f s", digits, seconds);
  return text.data();
}

std::string describe_ending(const std::optional<Ending>& ending) {
  if (!ending) return "still running";
  if (ending->signal) return concat("signal ", signal_name(*ending->signal));
  return concat("exit ", ending->exit_code.value_or(0));
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace convoy::launcher
