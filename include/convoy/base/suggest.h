// Finds the name that somebody probably meant.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace convoy {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment: no letter is touched twice).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name nearest to `given`, '-' and '_' counting as the same and case not counting; nothing if
/// none is near enough to be a likely slip. The first of equally near ones.
std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string> names);

/// "; did you mean 'nearest'?" or nothing, to be put behind an error about `given`.
std::string did_you_mean(std::string_view given, std::span<const std::string> names);

}  // namespace convoy
