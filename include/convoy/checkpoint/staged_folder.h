// A folder that appears under its name only when all that is in it is on disk.
#pragma once

#include <filesystem>
#include <string>

namespace convoy::saving {

/// Files are written to `path()`, a folder beside `target` whose name begins with a dot and ends in
/// ".partial"; commit() gives it its name. A crash at any moment leaves what was there before, or
/// all of the new; on file systems that cannot exchange two names, what was there before may then
/// lie beside its place, where find_step_folder looks too and the next StagedFolder gets it from.
/// Thread rule: one thread at a time.
class StagedFolder {
 public:
  /// Makes the folder, and those above it; removes one left behind by a crash, and gives `target`
  /// back what a crash has left beside its place. Error: kSystem.
  explicit StagedFolder(const std::filesystem::path& target);
  /// Removes what was not committed.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return staged_; }
  /// Takes the place of `target`, whether or not that exists. The files must have been synced by
  /// those who wrote them. Error: kSystem.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path staged_;
};

/// Replaces `path` by a file with this content, which is on disk before it has the name.
/// Error: kSystem.
void write_file_durably(const std::filesystem::path& path, const std::string& content);

}  // namespace convoy::saving
