// Runs train_gpt, alone or under convoyrun, with a model so small that a run takes a moment.
#pragma once

#include "train_gpt/scratch.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace convoy::testing {

using Json = nlohmann::json;

struct TrainRun {
  ProgramResult result;
  std::vector<Json> events;  ///< Of the --json file.

  /// The events of one kind, in order.
  std::vector<Json> of(const std::string& kind) const;
  /// The losses of the steps, as text: equal text is equal bits.
  std::vector<std::string> loss_texts() const;
};

/// `flags` come after those of the small model, so that they win. Rank 0 writes to a file below
/// `scratch`. A world of 1 runs without the launcher.
TrainRun train(const Scratch& scratch, int world, const std::vector<std::string>& flags);

}  // namespace convoy::testing
