// Names of steps, and looking for them.
#include "convoy/checkpoint/step_folders.h"

#include "base/regular_file.h"
#include "checkpoint/folder_swap.h"
#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/checkpoint/staged_folder.h"

#include <array>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <vector>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::size_t kFewestDigits = 8;

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kFewestDigits) return {};
  return parse_int(name.substr(kPrefix.size()), 0);
}

std::string first_line_of(const fs::path& path) {
  constexpr std::size_t kMost = 63;  // A longer line is no name of ours.
  const std::string text = read_regular_file(path, kMost).text;
  return text.substr(0, text.find('\n'));
}

std::optional<StepFolder> named_by_latest(const fs::path& folder) {
  const std::string name = first_line_of(folder / "latest");
  const auto step = step_of(name);
  if (!step) return {};
  const fs::path found = target_or_replaced(folder / name);
  if (found.empty()) return {};
  return StepFolder{*step, found};
}

/// "step_00000001" for the hidden name under which a save that was killed has left that folder.
std::optional<std::string> name_of_replaced(const std::string& hidden) {
  constexpr std::string_view kEnding = ".replaced";
  if (!hidden.starts_with(concat(".", kPrefix)) || !hidden.ends_with(kEnding)) return {};
  return hidden.substr(1, hidden.size() - 1 - kEnding.size());
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
    const std::string file = entry->path().filename().native();
    const std::string name = name_of_replaced(file).value_or(file);
    const auto step = step_of(name);
    if (!step || (newest && newest->step > *step)) continue;
    if (const fs::path found = target_or_replaced(folder / name); !found.empty()) {
      newest = StepFolder{*step, found};
    }
  }
  CONVOY_REQUIRE(!error, kInvalidArgument, "cannot read the folder '", folder.native(),
                 "': ", error.message());
  return newest;
}

StepFolder find_step_folder(const fs::path& path) {
  const fs::path clean = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;
  if (const auto step = step_of(clean.filename().native())) {
    if (const fs::path found = target_or_replaced(clean); !found.empty()) return {*step, found};
  }
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
  std::vector<std::string> hidden;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (name.starts_with(concat(".", kPrefix))) hidden.push_back(name);
  }
  if (error) {
    throw_system_error(concat("cannot clean up '", folder.native(), "'"), error.value());
  }
  for (const std::string& name : hidden) {
    if (name.ends_with(".partial")) remove_folder(folder / name);
    if (const auto replaced = name_of_replaced(name)) restore_replaced(folder / *replaced);
  }
}

}  // namespace convoy::saving
