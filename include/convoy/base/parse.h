// Reads numbers and durations from text that a person typed. Nothing but the whole text counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// A decimal whole number within [min, max]; nothing for anything else ("", "3x", " 3", "0x10").
std::optional<std::int64_t> parse_int(std::string_view text,
                                      std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                                      std::int64_t max = std::numeric_limits<std::int64_t>::max());

/// A finite decimal number, with or without exponent.
std::optional<double> parse_double(std::string_view text);

/// A duration that is not negative: "30" and "30s" are seconds, also "500ms", "2m", "1.5h".
/// Nothing for malformed text and for more than 292 years.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

/// The shortest of these forms that reads back to the same value: "500ms", "30s", "10m".
std::string format_duration(std::chrono::nanoseconds duration);

}  // namespace convoy
