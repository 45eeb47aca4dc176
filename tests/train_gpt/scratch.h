// A folder of its own for a test, and running programs from it.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::testing {

/// A temporary folder that goes with its owner.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  /// Writes a file below the folder, making folders on the way; returns its path.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

std::string read_whole(const std::filesystem::path& file);

/// English-like text of exactly `bytes` bytes: the same for the same seed.
std::string make_text(std::size_t bytes, unsigned seed);

struct ProgramResult {
  int exit_code;  ///< 128 + the signal where one ended it; -1 if it ran out of time and was killed.
  std::string out;
  std::string err;
};

/// Runs a program to its end, with no standard input and without this process's rank variables.
ProgramResult run_program(const std::vector<std::string>& command,
                          std::chrono::seconds limit = std::chrono::seconds(240));

}  // namespace convoy::testing
