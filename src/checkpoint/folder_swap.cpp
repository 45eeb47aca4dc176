// One exchange, or two renames that can be undone.
#include "checkpoint/folder_swap.h"

#include "checkpoint/durable_file.h"
#include "convoy/base/check.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fcntl.h>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to(const char* what, const fs::path& path, int error_number) {
  throw_system_error(concat(what, " '", path.native(), "'"), error_number);
}

bool lacks_exchange(int error_number) {
  return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP;
}

void rename_twice(const fs::path& staged, const fs::path& target, const Renames& renames) {
  const fs::path old = replaced_name(target);
  remove_folder(old);
  if (const int error = renames.rename(target, old)) fail_to("cannot rename", target, error);
  if (const int error = renames.rename(staged, target)) {
    const bool undone = renames.rename(old, target) == 0;
    throw_system_error(
        concat("cannot rename '", staged.native(), "'",
               undone ? "" : concat(" (what it was to replace is in '", old.native(), "')")),
        error);
  }
  sync_folder(folder_of(target));  // The old one stays until the new one is there for good.
  remove_folder(old);
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) fail_to("cannot look at", path, error.value());
  return found;
}

}  // namespace

int Renames::rename(const fs::path& from, const fs::path& to) const {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int Renames::exchange(const fs::path& a, const fs::path& b) const {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
}

void replace_folder(const fs::path& staged, const fs::path& target, const Renames& renames) {
  if (!is_there(target)) {
    if (const int error = renames.rename(staged, target)) fail_to("cannot rename", staged, error);
  } else if (const int error = renames.exchange(staged, target)) {
    if (!lacks_exchange(error)) fail_to("cannot replace", target, error);
    rename_twice(staged, target, renames);
  }
  sync_folder(folder_of(target));
}

fs::path replaced_name(const fs::path& target) { return hidden_beside(target, ".replaced"); }

fs::path target_or_replaced(const fs::path& target) {
  std::error_code ignored;
  if (fs::is_directory(target, ignored)) return target;
  const fs::path old = replaced_name(target);
  return fs::is_directory(old, ignored) ? old : fs::path();
}

void restore_replaced(const fs::path& target) {
  const fs::path old = replaced_name(target);
  if (!is_there(old)) return;
  if (is_there(target)) return remove_folder(old);
  if (const int error = Renames().rename(old, target)) fail_to("cannot rename", old, error);
  sync_folder(folder_of(target));
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_to("cannot remove", path, error.value());
}

fs::path hidden_beside(const fs::path& target, const char* ending) {
  return folder_of(target) / concat(".", target.filename().native(), ending);
}

}  // namespace convoy::saving
