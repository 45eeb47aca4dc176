// The folder of a training's checkpoints: step_00000100 and its like, and `latest`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace convoy::saving {

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};

/// "step_00000100".
std::string step_folder_name(std::int64_t step);

/// The step folder that `folder`/latest names (it may lie under a hidden name, where a save was
/// killed while it replaced it); without that, or if it names nothing that is there,
/// the one of the highest step. Nothing if there is none. Error: kInvalidArgument for a folder
/// that cannot be read.
std::optional<StepFolder> latest_step_folder(const std::filesystem::path& folder);

/// `path` itself if it is a step folder, else the latest one in it. Error: kInvalidArgument if
/// there is none.
StepFolder find_step_folder(const std::filesystem::path& path);

/// Lets `latest` in `folder` name the folder of `step`. Error: kSystem.
void set_latest(const std::filesystem::path& folder, std::int64_t step);

/// Removes what saves that were killed have left in `folder`, and gives a step folder that one was
/// replacing its name back. Error: kSystem.
void remove_partial_folders(const std::filesystem::path& folder);

}  // namespace convoy::saving
