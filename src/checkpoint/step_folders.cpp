// Names of steps, and looking for them.
#include "convoy/checkpoint/step_folders.h"

#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/checkpoint/staged_folder.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <system_error>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::size_t kFewestDigits = 8;

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kFewestDigits) return {};
  return parse_int(name.substr(kPrefix.size()), 0);
}

std::optional<StepFolder> named_by_latest(const fs::path& folder) {
  std::ifstream file(folder / "latest");
  std::array<char, 64> text{};
  file.getline(text.data(), text.size());  // A longer line is no name of ours.
  const auto step = step_of(text.data());
  if (!step || !fs::is_directory(folder / text.data())) return {};
  return StepFolder{*step, folder / text.data()};
}

}  // namespace

std::string step_folder_name(std::int64_t step) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "step_%08lld", static_cast<long long>(step));
  return text.data();
}

std::optional<StepFolder> latest_step_folder(const fs::path& folder) {
  if (auto named = named_by_latest(folder)) return named;
  std::optional<StepFolder> newest;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_of(entry->path().filename().native());
    if (!step || !entry->is_directory() || (newest && newest->step > *step)) continue;
    newest = StepFolder{*step, entry->path()};
  }
  CONVOY_REQUIRE(!error, kInvalidArgument, "cannot read the folder '", folder.native(),
                 "': ", error.message());
  return newest;
}

StepFolder find_step_folder(const fs::path& path) {
  const fs::path clean = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;
  CONVOY_REQUIRE(fs::is_directory(clean, ignored), kInvalidArgument,
                 "there is no folder of checkpoints '", path.native(), "'");
  const fs::path full = fs::canonical(clean, ignored);
  if (const auto step = step_of((ignored ? clean : full).filename().native())) {
    return {*step, clean};
  }
  const auto latest = latest_step_folder(clean);
  CONVOY_REQUIRE(latest.has_value(), kInvalidArgument, "there is no checkpoint in '", path.native(),
                 "': no folder step_00000001 or the like");
  return *latest;
}

void set_latest(const fs::path& folder, std::int64_t step) {
  write_file_durably(folder / "latest", step_folder_name(step) + "\n");
}

void remove_partial_folders(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (!name.starts_with(concat(".", kPrefix)) || !name.ends_with(".partial")) continue;
    fs::remove_all(entry->path(), error);
    if (error) break;
  }
  if (error) {
    throw_system_error(concat("cannot clean up '", folder.native(), "'"), error.value());
  }
}

}  // namespace convoy::saving
