// Step folders through the library's functions.
#include "programs/train_gpt/checkpoints.h"

#include "base/regular_file.h"
#include "convoy/base/check.h"
#include "convoy/checkpoint/first_rank.h"
#include "convoy/checkpoint/model_state.h"
#include "convoy/checkpoint/optimizer_state.h"
#include "convoy/checkpoint/staged_folder.h"
#include "convoy/checkpoint/step_folders.h"
#include "convoy/version.h"

#include <ATen/ATen.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include <unistd.h>

namespace convoy::train_gpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "train_state.json";
constexpr std::size_t kMostStateBytes = 64 * 1024;

ParsedTrainState read_train_state(const fs::path& folder, const TrainingIdentity& identity) {
  const fs::path path = folder / kStateFile;
  const auto [text, problem] = read_regular_file(path, kMostStateBytes + 1);
  CONVOY_REQUIRE(problem.empty(), kInvalidArgument, "cannot read '", path.native(), "': ", problem);
  CONVOY_REQUIRE(text.size() <= kMostStateBytes, kInvalidArgument, "'", path.native(),
                 "' is too long for what it should be");
  try {
    return parse_train_state(text, identity);
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument,
                concat("cannot use '", path.native(), "': ", error.what()));
  }
}

/// For people who look into the file.
JsonLine facts_of(const Options& options, int world) {
  const BuildInfo build = build_info();
  JsonLine about;
  about.add("world", world)
      .add("strategy", options.strategy ? to_string(*options.strategy) : "default")
      .add("steps", options.steps)
      .add("lr", options.lr)
      .add("min-lr", options.min_lr)
      .add("warmup-steps", options.warmup_steps)
      .add("weight-decay", options.weight_decay)
      .add("clip", options.clip)
      .add("convoy", build.version)
      .add("commit", build.commit);
  return about;
}

}  // namespace

Checkpoints::Checkpoints(const Options& options, const TrainingIdentity& identity,
                         std::int64_t global_batch, Communicator& comm)
    : options_(options), identity_(identity), global_batch_(global_batch), comm_(comm) {
  if (!options_.save.empty()) saving::on_first_rank(&comm_, [this] { check_folder(); });
}

void Checkpoints::check_folder() const {
  const fs::path folder = options_.save;
  std::error_code error;
  fs::create_directories(folder, error);
  CONVOY_REQUIRE(!error, kInvalidArgument, "cannot make the folder --save '", options_.save,
                 "': ", error.message());
  CONVOY_REQUIRE(::access(folder.c_str(), W_OK | X_OK) == 0, kInvalidArgument,
                 "cannot write into --save '", options_.save,
                 "': ", std::generic_category().message(errno));
  if (const auto latest = saving::latest_step_folder(folder)) {
    const std::string difference = read_train_state(latest->path, identity_).difference;
    CONVOY_REQUIRE(difference.empty(), kInvalidArgument, "--save '", options_.save,
                   "' has checkpoints of another training (", difference, "); give another folder");
  }
  // Only now: another training may be saving here at this moment.
  saving::remove_partial_folders(folder);
}

TrainState Checkpoints::resume(Strategy& strategy, torch::optim::Optimizer& optimizer) {
  TrainState state;
  if (options_.resume.empty()) return state;
  fs::path folder;
  saving::on_first_rank(&comm_, [&] {
    folder = saving::find_step_folder(options_.resume).path;
    const ParsedTrainState parsed = read_train_state(folder, identity_);
    CONVOY_REQUIRE(parsed.difference.empty(), kInvalidArgument, "--resume '", folder.native(),
                   "' is another training: ", parsed.difference);
    state = parsed.state;
    CONVOY_REQUIRE(state.step <= options_.steps, kInvalidArgument, "--resume '", folder.native(),
                   "' is at step ", state.step, " already, and --steps ", options_.steps,
                   " is the number of all steps");
    std::error_code is_other;
    const fs::path mine = fs::path(options_.save) / saving::step_folder_name(state.step);
    if (!options_.save.empty() && fs::equivalent(mine, folder, is_other)) saved_step_ = state.step;
  });
  auto progress = at::tensor({static_cast<double>(state.step), static_cast<double>(state.loss),
                              static_cast<double>(saved_step_)},
                             at::kDouble);
  comm_.broadcast(progress, 0, {.tag = "resume"})->wait();
  state.step = static_cast<std::int64_t>(progress[0].item<double>());
  state.loss = static_cast<float>(progress[1].item<double>());
  saved_step_ = static_cast<std::int64_t>(progress[2].item<double>());
  saving::load_model(folder / kModelFile, strategy.held_spans(), &comm_);
  saving::load_optimizer(folder / kOptimizerFile, strategy.spans(), optimizer, &comm_);
  return state;
}

bool Checkpoints::is_due(std::int64_t step) const {
  if (options_.save.empty() || step == saved_step_) return false;
  return step == options_.steps || (options_.save_every > 0 && step % options_.save_every == 0);
}

std::string Checkpoints::save(const TrainState& state, Strategy& strategy,
                              const torch::optim::Optimizer& optimizer) {
  const fs::path folder = options_.save;
  const fs::path target = folder / saving::step_folder_name(state.step);
  std::optional<saving::StagedFolder> staged;
  saving::on_first_rank(&comm_, [&] {
    saving::remove_partial_folders(folder);
    staged.emplace(target);
  });
  const fs::path into = staged ? staged->path() : fs::path();
  saving::save_model(into / kModelFile, strategy.held_spans(), &comm_, {{"format", "pt"}});
  saving::save_optimizer(into / kOptimizerFile, strategy.spans(), optimizer, &comm_);
  saving::on_first_rank(&comm_, [&] {
    saving::write_file_durably(into / kStateFile,
                               format_train_state(state, identity_, state.step * global_batch_,
                                                  facts_of(options_, comm_.size())));
    staged->commit();
    saving::set_latest(folder, state.step);
  });
  return target.native();
}

}  // namespace convoy::train_gpt
