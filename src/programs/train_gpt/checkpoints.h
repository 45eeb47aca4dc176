// Saving a training to step folders and going on from one.
#pragma once

#include "convoy/comm/communicator.h"
#include "programs/train_gpt/options.h"
#include "programs/train_gpt/strategy.h"
#include "programs/train_gpt/train_state.h"

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

namespace convoy::train_gpt {

/// DIR/step_00000100/{model.safetensors,optimizer.safetensors,train_state.json}, whole tensors
/// under their original names, and DIR/latest. All calls are collective, and made by one thread.
/// Errors are the same on all ranks.
class Checkpoints {
 public:
  /// Looks whether the folder of --save can be used, before anything is trained, and clears away
  /// what a killed save has left there. Keeps references.
  /// Errors: kInvalidArgument for a folder that cannot be written or has checkpoints of another
  /// training.
  Checkpoints(const Options& options, const TrainingIdentity& identity, std::int64_t global_batch,
              Communicator& comm);

  /// What --resume names: sets the parameters and the optimizer's state, and returns how far the
  /// training is. Without --resume the beginning. Errors: kInvalidArgument where there is no
  /// checkpoint, it is of another training or further than --steps.
  TrainState resume(Strategy& strategy, torch::optim::Optimizer& optimizer);
  /// Whether --save and --save-every ask for a checkpoint after this step, the last one always; but
  /// not for the one that the training was resumed from, which is there.
  bool is_due(std::int64_t step) const;
  /// Returns the new folder. Error: kSystem when it cannot be written; the others stay.
  std::string save(const TrainState& state, Strategy& strategy,
                   const torch::optim::Optimizer& optimizer);

 private:
  void check_folder() const;

  const Options& options_;
  TrainingIdentity identity_;
  std::int64_t global_batch_;
  Communicator& comm_;
  std::int64_t saved_step_ = -1;  ///< Of the checkpoint in --save that --resume has read.
};

}  // namespace convoy::train_gpt
