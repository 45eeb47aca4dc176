// Made beside its target, and renamed.
#include "convoy/checkpoint/staged_folder.h"

#include "checkpoint/durable_file.h"
#include "convoy/base/check.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fcntl.h>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

fs::path hidden_beside(const fs::path& target, const char* ending) {
  return folder_of(target) / concat(".", target.filename().native(), ending);
}

void require_done(const std::error_code& error, const char* what, const fs::path& path) {
  if (error) throw_system_error(concat(what, " '", path.native(), "'"), error.value());
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require_done(error, "cannot remove", path);
}

/// For file systems that cannot exchange two names: a crash between the two renames leaves the new
/// folder under its hidden name only, and the other checkpoints.
void move_aside_and_rename(const fs::path& staged, const fs::path& target) {
  const fs::path old = hidden_beside(target, ".old.partial");
  remove_folder(old);
  std::error_code error;
  fs::rename(target, old, error);
  require_done(error, "cannot rename", target);
  fs::rename(staged, target, error);
  require_done(error, "cannot rename", staged);
  remove_folder(old);
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target)
    : target_(target), staged_(hidden_beside(target, ".partial")) {
  remove_folder(staged_);
  std::error_code error;
  fs::create_directories(staged_, error);
  require_done(error, "cannot make the folder", staged_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;  // The next one for this target, or remove_partial_folders, tries again.
  fs::remove_all(staged_, ignored);
}

void StagedFolder::commit() {
  sync_folder(staged_);
  std::error_code error;
  if (!fs::exists(target_)) {
    fs::rename(staged_, target_, error);
    require_done(error, "cannot rename", staged_);
  } else if (::renameat2(AT_FDCWD, staged_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) !=
             0) {
    move_aside_and_rename(staged_, target_);
  }
  sync_folder(folder_of(target_));
  fs::remove_all(staged_, error);  // After an exchange this is the old one; see the destructor.
}

void write_file_durably(const fs::path& path, const std::string& content) {
  const fs::path partial = hidden_beside(path, ".partial");
  DurableFile file(partial);
  file.write(content.data(), content.size());
  file.finish();
  std::error_code error;
  fs::rename(partial, path, error);
  require_done(error, "cannot rename", partial);
  sync_folder(folder_of(path));
}

}  // namespace convoy::saving
