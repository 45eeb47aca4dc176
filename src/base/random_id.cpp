// Random names from the system's generator.
#include "convoy/base/random_id.h"

#include "convoy/base/check.h"

#include <array>
#include <cerrno>

#include <sys/random.h>

namespace convoy {

std::string random_id(std::string_view prefix) {
  std::array<unsigned char, 16> bits;
  // Up to 256 bytes come whole or not at all.
  while (::getrandom(bits.data(), bits.size(), 0) < 0) {
    if (errno != EINTR) throw_system_error("asking for random bits", errno);
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  auto name = concat(prefix, "-");
  for (const unsigned byte : bits) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

}  // namespace convoy
