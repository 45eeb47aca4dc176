// JSON text of strings, by nlohmann.
#include "profile/json_escape.h"

#include <nlohmann/json.hpp>

namespace convoy::profile {

std::string json_quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace convoy::profile
