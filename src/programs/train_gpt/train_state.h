// train_state.json: how far a training is, and which training it is. Pure: values and text.
#pragma once

#include "programs/train_gpt/json_line.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convoy::train_gpt {

/// What a run must have in common with the one it goes on from: flags and facts of the text, each
/// with its value as JSON.
using TrainingIdentity = std::vector<std::pair<std::string, std::string>>;

struct TrainState {
  std::int64_t step = 0;                                 ///< Steps done.
  float loss = std::numeric_limits<float>::quiet_NaN();  ///< Of the last one.
};

/// `about` is for people: it is written and never read. `next_window` is the place in the order of
/// training windows.
std::string format_train_state(const TrainState& state, const TrainingIdentity& identity,
                               std::int64_t next_window, const JsonLine& about);

struct ParsedTrainState {
  TrainState state;
  /// What differs from the identity of this run, for a message; empty if nothing does.
  std::string difference;
};

/// Error: kInvalidArgument, a sentence without the file's name.
ParsedTrainState parse_train_state(std::string_view json, const TrainingIdentity& identity);

}  // namespace convoy::train_gpt
