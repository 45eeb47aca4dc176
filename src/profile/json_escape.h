// Text as a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace convoy::profile {

/// In quotes, escaped; bytes that are no UTF-8 become U+FFFD, so that any name gives valid JSON.
std::string json_quoted(std::string_view text);

}  // namespace convoy::profile
