// Cuts off stack traces and joins lines.
#include "convoy/base/exception_text.h"

#include <algorithm>
#include <string_view>

namespace convoy {

std::string exception_text(const std::exception& error) {
  std::string_view text = error.what();
  for (const std::string_view trace : {"\nException raised from ", "\nframe #0: "}) {
    text = text.substr(0, text.find(trace));
  }
  while (text.ends_with('\n')) text.remove_suffix(1);
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

}  // namespace convoy
