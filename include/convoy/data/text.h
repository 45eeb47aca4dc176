// Files of any kind as one long sequence of bytes, read where they are needed and never whole.
#pragma once

#include "convoy/base/fd.h"
#include "convoy/base/hash.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace convoy::data {

/// The bytes of one or more files, end to end, read from the files each time. The first 256 files
/// stay open (fewer where the process may open fewer than 1,024); of others the path must go on
/// leading to the same file. A file that is cut shorter while it is in use, or is no longer there,
/// is an error of the read that misses it; that bytes are replaced by others is not noticed. Any
/// number of threads may read.
class Text {
 public:
  /// Opens files, and the regular files below folders (sorted by path, so that the order depends on
  /// names alone; names that begin with '.' are skipped, symbolic links to folders not followed).
  /// `paths` keep their order. Empty files count for nothing.
  /// Errors: kInvalidArgument naming the path that does not exist, cannot be read or is neither
  /// file nor folder, or all paths when there is not one byte in them.
  static Text open(std::span<const std::string> paths);

  /// All bytes together.
  std::int64_t size() const noexcept { return size_; }
  /// The files that hold them, in order.
  const std::vector<std::string>& files() const noexcept { return names_; }
  /// Copies bytes [begin, begin + out.size()). Errors: kInvalidArgument past the end; kSystem
  /// naming a file that cannot be read, is another one or has been cut since it was opened.
  void read(std::int64_t begin, std::span<std::uint8_t> out) const;
  /// XXH3-64 of all bytes in order: the same for the same text, wherever its files lie. Errors as
  /// read().
  std::uint64_t xxh3() const;
  /// A hash to compare texts by: of the size and of all bytes up to 64 MiB; of a larger text, of 64
  /// blocks of 1 MiB spread evenly from its first to its last byte. Errors as read().
  std::uint64_t fingerprint() const;

 private:
  struct File {
    std::int64_t begin;  ///< Place of its first byte in the text.
    std::int64_t bytes;
    std::string path;
    dev_t device;
    ino_t inode;
    Fd kept;  ///< None: opened for each read.

    Fd open() const;
    void read(std::int64_t from, std::span<std::uint8_t> out) const;
  };

  void append(const std::string& path);
  void hash_range(std::int64_t begin, std::int64_t bytes, Hasher64& hash) const;

  std::vector<File> files_;
  std::vector<std::string> names_;
  std::int64_t size_ = 0;
};

}  // namespace convoy::data
