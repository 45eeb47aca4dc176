// JSON text of numbers and strings.
#include "programs/train_gpt/json_line.h"

#include "profile/json_escape.h"

#include <array>
#include <charconv>
#include <cmath>

namespace convoy::train_gpt {
namespace {

template <class Number>
std::string shortest_text(Number value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  return {text.begin(), end};
}

}  // namespace

std::string shortest(float value) { return shortest_text(value); }
std::string shortest(double value) { return shortest_text(value); }

std::string json_text(std::string_view text) { return profile::json_quoted(text); }

JsonLine& JsonLine::raw(std::string_view key, std::string_view json) {
  if (!fields_.empty()) fields_ += ',';
  fields_ += json_text(key);
  fields_ += ':';
  fields_ += json;
  return *this;
}

}  // namespace convoy::train_gpt
