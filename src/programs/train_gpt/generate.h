// Lets the model write text.
#pragma once

#include "programs/train_gpt/strategy.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace convoy::train_gpt {

/// Draws `count` bytes after `prompt` (not empty; of a longer one its last `seq` bytes count), at
/// temperature 0.8, from the model's first 256 ids. Collective: all ranks draw the same bytes.
std::string generate(Strategy& strategy, std::string_view prompt, std::int64_t count,
                     std::uint64_t seed);

/// Bytes as text for a terminal: valid UTF-8, new lines and tabs stay; anything else becomes '.'.
std::string printable(std::string_view bytes);

}  // namespace convoy::train_gpt
