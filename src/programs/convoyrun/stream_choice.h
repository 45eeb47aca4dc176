// Which of a rank's two output streams something applies to, for all ranks or for some.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace convoy::launcher {

/// One of a rank's output streams.
enum class Stream { kOut, kErr };

/// "stdout" or "stderr".
std::string_view to_string(Stream stream) noexcept;

/// torchrun's values: 0 neither stream, 1 stdout, 2 stderr, 3 both; or for single local ranks, as
/// in "0:3,2:1", where ranks that are not named have 0.
class StreamChoice {
 public:
  StreamChoice() = default;
  /// `mask` for every rank.
  explicit StreamChoice(int mask) : everywhere_(mask) {}

  /// Nothing for text that is neither form, and for a rank named twice.
  static std::optional<StreamChoice> parse(std::string_view text);

  bool covers(int local_rank, Stream stream) const;
  /// True if no rank has a stream in it.
  bool is_empty() const;
  /// The highest local rank that is named, or -1.
  int highest_rank() const;

 private:
  int everywhere_ = 0;
  std::map<int, int> by_rank_;
};

}  // namespace convoy::launcher
