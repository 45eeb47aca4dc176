// Puts a folder in the place of another, also where names cannot be exchanged.
#pragma once

#include <filesystem>

namespace convoy::saving {

/// The system's calls; 0 or an error number. A test can be a file system that lacks one, or a
/// machine that stops between two.
class Renames {
 public:
  virtual ~Renames() = default;
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  virtual int exchange(const std::filesystem::path& a, const std::filesystem::path& b) const;
};

/// Gives `staged` the name `target`, and is done when that is on disk. What had the name is then
/// under `staged`, or removed. Error: kSystem; what had the name has it still, or lies under
/// replaced_name(target).
///
/// File systems that cannot exchange names (NFS, some of FUSE) need two renames. A crash between
/// them leaves the old folder under replaced_name(target) and none under `target`: see
/// restore_replaced.
void replace_folder(const std::filesystem::path& staged, const std::filesystem::path& target,
                    const Renames& renames = Renames());

/// ".step_00000001.replaced".
std::filesystem::path replaced_name(const std::filesystem::path& target);

/// The folder `target`, or what a crash has left of it under replaced_name(target); else empty.
std::filesystem::path target_or_replaced(const std::filesystem::path& target);

/// Gives the folder under replaced_name(target), if there is one, its name back; removes it if
/// `target` is there. Error: kSystem.
void restore_replaced(const std::filesystem::path& target);

/// Removes a folder and all in it, if it is there. Error: kSystem.
void remove_folder(const std::filesystem::path& path);

/// `target` with a dot before its name and `ending` behind.
std::filesystem::path hidden_beside(const std::filesystem::path& target, const char* ending);

}  // namespace convoy::saving
