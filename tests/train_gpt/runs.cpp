// Starts training runs and reads their events.
#include "train_gpt/runs.h"

#include <sstream>
#include <stdexcept>

namespace convoy::testing {
namespace {

constexpr const char* kSmallModel =
    "--model tiny --layers 2 --dim 32 --heads 2 --seq 32 --steps 4 --threads 1 --sample 0 "
    "--eval-windows 12 --timeout 60";

std::vector<Json> read_events(const std::filesystem::path& file) {
  std::vector<Json> events;
  std::istringstream lines(read_whole(file));
  for (std::string line; std::getline(lines, line);) events.push_back(Json::parse(line));
  return events;
}

}  // namespace

std::vector<Json> TrainRun::of(const std::string& kind) const {
  std::vector<Json> found;
  for (const Json& event : events) {
    if (event.at("event") == kind) found.push_back(event);
  }
  return found;
}

std::vector<std::string> TrainRun::loss_texts() const {
  std::vector<std::string> texts;
  for (const Json& step : of("step")) texts.push_back(step.at("loss").dump());
  return texts;
}

TrainRun train(const Scratch& scratch, int world, const std::vector<std::string>& flags) {
  const auto file = scratch.path() / "events.jsonl";
  std::filesystem::remove(file);
  std::vector<std::string> command;
  if (world > 1) command = {CONVOY_TEST_CONVOYRUN, "-n", std::to_string(world), "--"};
  command.emplace_back(CONVOY_TEST_TRAIN_GPT);
  std::istringstream small(kSmallModel);
  for (std::string word; small >> word;) command.push_back(word);
  command.emplace_back("--json");
  command.push_back(file.native());
  command.insert(command.end(), flags.begin(), flags.end());
  ProgramResult result = run_program(command);
  return {std::move(result), read_events(file)};
}

}  // namespace convoy::testing
