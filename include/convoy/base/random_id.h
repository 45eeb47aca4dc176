// Names that nobody else has and nobody can guess.
#pragma once

#include <string>
#include <string_view>

namespace convoy {

/// `prefix`, '-' and 128 random bits of the system in hex. Error: kSystem.
std::string random_id(std::string_view prefix);

}  // namespace convoy
