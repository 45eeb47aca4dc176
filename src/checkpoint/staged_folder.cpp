// Made beside its target, and renamed.
#include "convoy/checkpoint/staged_folder.h"

#include "checkpoint/durable_file.h"
#include "checkpoint/folder_swap.h"
#include "convoy/base/check.h"

#include <system_error>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

void require_done(const std::error_code& error, const char* what, const fs::path& path) {
  if (error) throw_system_error(concat(what, " '", path.native(), "'"), error.value());
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target)
    : target_(target), staged_(hidden_beside(target, ".partial")) {
  remove_folder(staged_);
  restore_replaced(target_);
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
  replace_folder(staged_, target_);
  std::error_code ignored;
  fs::remove_all(staged_, ignored);  // After an exchange this is the old one; see the destructor.
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
