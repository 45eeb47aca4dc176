// Writes and compares.
#include "programs/train_gpt/train_state.h"

#include "convoy/base/check.h"

#include <nlohmann/json.hpp>

namespace convoy::train_gpt {
namespace {

constexpr int kStateSchema = 1;

std::string describe_difference(const std::string& name, const std::string& here,
                                const std::string& there) {
  if (name == "data-xxh3" || name == "data-bytes") {
    return concat("--data is another text: ", name.substr(5), " ", here, " here, ", there,
                  " there");
  }
  return concat("--", name, " is ", here, " here and ", there, " there");
}

}  // namespace

std::string format_train_state(const TrainState& state, const TrainingIdentity& identity,
                               std::int64_t next_window, const JsonLine& about) {
  JsonLine config;
  for (const auto& [name, value] : identity) config.raw(name, value);
  JsonLine object;
  object.add("schema", kStateSchema)
      .add("step", state.step)
      .add("loss", state.loss)
      .add("next_window", next_window)
      .add("config", config)
      .add("about", about);
  return object.text() + "\n";
}

ParsedTrainState parse_train_state(std::string_view json, const TrainingIdentity& identity) {
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* field) -> std::int64_t {
    const auto found = object.find(field);
    CONVOY_REQUIRE(found != object.end() && found->is_number_unsigned(), kInvalidArgument,
                   "it has no whole number '", field, "'");
    return found->get<std::int64_t>();
  };
  CONVOY_REQUIRE(object.is_object(), kInvalidArgument, "it is no JSON object");
  CONVOY_REQUIRE(number("schema") == kStateSchema, kInvalidArgument, "its schema is ",
                 number("schema"), ", this train_gpt knows ", kStateSchema);
  ParsedTrainState parsed;
  parsed.state.step = number("step");
  if (const auto loss = object.find("loss"); loss != object.end() && loss->is_number()) {
    parsed.state.loss = loss->get<float>();
  }
  const auto config = object.find("config");
  CONVOY_REQUIRE(config != object.end() && config->is_object(), kInvalidArgument,
                 "it has no object 'config'");
  for (const auto& [name, value] : identity) {
    const auto found = config->find(name);
    const std::string there =
        found == config->end()
            ? "not known"
            : found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (there == value) continue;
    parsed.difference = describe_difference(name, value, there);
    break;
  }
  return parsed;
}

}  // namespace convoy::train_gpt
