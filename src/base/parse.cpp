// Numbers and durations from text.
#include "convoy/base/parse.h"

#include "convoy/base/check.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace convoy {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};
constexpr std::array<Unit, 6> kUnits{{{"h", 3'600'000'000'000},
                                      {"m", 60'000'000'000},
                                      {"s", 1'000'000'000},
                                      {"ms", 1'000'000},
                                      {"us", 1'000},
                                      {"ns", 1}}};

}  // namespace

std::optional<std::int64_t> parse_int(std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < min || value > max) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto digits = text.find_first_not_of("0123456789.");
  const auto number_text = text.substr(0, digits);
  const auto unit_text =
      digits == std::string_view::npos ? std::string_view("s") : text.substr(digits);
  for (const auto& unit : kUnits) {
    if (unit.name != unit_text) continue;
    // Whole numbers stay exact; fractions are read as floating point.
    if (const auto whole = parse_int(number_text, 0)) {
      std::int64_t product = 0;
      if (__builtin_mul_overflow(*whole, unit.nanoseconds, &product)) return std::nullopt;
      return std::chrono::nanoseconds(product);
    }
    const auto number = parse_double(number_text);
    if (!number) return std::nullopt;
    const double product = *number * static_cast<double>(unit.nanoseconds);
    if (product >= 9.2e18) return std::nullopt;
    return std::chrono::nanoseconds(std::llround(product));
  }
  return std::nullopt;
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const auto count = duration.count();
  if (count == 0) return "0s";
  std::string shortest;
  for (const auto& unit : kUnits) {
    if (count % unit.nanoseconds != 0) continue;
    auto text = concat(count / unit.nanoseconds, unit.name);
    if (shortest.empty() || text.size() < shortest.size()) shortest = std::move(text);
  }
  return shortest;
}

}  // namespace convoy
