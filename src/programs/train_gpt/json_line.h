// One JSON object in one line, with numbers as the shortest text that reads back to them.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy::train_gpt {

/// The shortest decimal text that reads back to the same float or double; "null" for what JSON
/// cannot say (infinity, not a number).
std::string shortest(float value);
std::string shortest(double value);

/// Text in quotes, escaped; bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

/// Builds an object field by field. Fields keep their order.
class JsonLine {
 public:
  JsonLine& add(std::string_view key, std::string_view text) { return raw(key, json_text(text)); }
  JsonLine& add(std::string_view key, const char* text) { return raw(key, json_text(text)); }
  JsonLine& add(std::string_view key, float value) { return raw(key, shortest(value)); }
  JsonLine& add(std::string_view key, double value) { return raw(key, shortest(value)); }
  JsonLine& add(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  template <std::integral Whole>
  JsonLine& add(std::string_view key, Whole value) {
    return raw(key, std::to_string(value));
  }
  template <class Value>
  JsonLine& add(std::string_view key, const std::optional<Value>& value) {
    return value ? add(key, *value) : raw(key, "null");
  }
  JsonLine& add(std::string_view key, const JsonLine& object) { return raw(key, object.text()); }
  /// A value that is JSON already.
  JsonLine& raw(std::string_view key, std::string_view json);

  std::string text() const { return "{" + fields_ + "}"; }

 private:
  std::string fields_;
};

}  // namespace convoy::train_gpt
