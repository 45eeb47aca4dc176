// Escapes what JSON does not take as it is.
#include "json_escape.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace convoy::profile {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xC2 && first <= 0xDF   ? 2
                            : first >= 0xE0 && first <= 0xEF ? 3
                            : first >= 0xF0 && first <= 0xF4 ? 4
                                                             : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t at = 1; at < bytes; ++at) {
    if ((byte(at) & 0xC0) != 0x80) return 0;
  }
  // Longer than needed, halves of a surrogate pair, beyond the last character.
  const std::uint8_t second = byte(1);
  const bool is_wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return is_wrong ? 0 : bytes;
}

std::string escaped(char byte) {
  if (byte == '"' || byte == '\\') return {'\\', byte};
  if (static_cast<std::uint8_t>(byte) >= 0x20) return {byte};
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(byte));
  return text.data();
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) {
      quoted += kReplacement;
    } else if (bytes == 1) {
      quoted += escaped(text[0]);
    } else {
      quoted += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return quoted + '"';
}

}  // namespace convoy::profile
