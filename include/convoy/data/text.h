// Files of any kind as one long sequence of bytes, mapped into memory and never read whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace convoy::data {

/// The bytes of one or more files, end to end. The files are mapped, so pages come from the file as
/// they are read and can be dropped again by the system. A file must not be cut shorter while it is
/// in use: the system answers a read behind its new end with SIGBUS.
/// Immutable; any number of threads may read.
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
  /// Copies bytes [begin, begin + out.size()). Error: kInvalidArgument past the end.
  void read(std::int64_t begin, std::span<std::uint8_t> out) const;
  /// XXH3-64 of all bytes in order: the same for the same text, wherever its files lie.
  std::uint64_t xxh3() const;

 private:
  struct Piece {
    std::int64_t begin;  ///< Place of its first byte in the text.
    std::span<const std::uint8_t> bytes;
    std::shared_ptr<const void> mapping;
  };

  void append(const std::string& path);

  std::vector<Piece> pieces_;
  std::vector<std::string> names_;
  std::int64_t size_ = 0;
};

}  // namespace convoy::data
