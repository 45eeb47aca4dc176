// Temporary folders and child processes.
#include "train_gpt/scratch.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

/// This process's environment without what would make a child believe that it is a rank.
std::vector<std::string> child_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool is_rank = text.starts_with("RANK=") || text.starts_with("WORLD_SIZE=") ||
                         text.starts_with("LOCAL_") || text.starts_with("CONVOY_") ||
                         text.starts_with("OMP_NUM_THREADS=");
    if (!is_rank) environment.emplace_back(text);
  }
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

int wait_for(pid_t child, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Scratch::Scratch() {
  std::string pattern = (fs::temp_directory_path() / "convoy-test-XXXXXX").native();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Scratch::write(const std::string& name, std::string_view bytes) const {
  const fs::path file = path_ / name;
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
  return file.native();
}

std::string read_whole(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(text).str();
}

std::string make_text(std::size_t bytes, unsigned seed) {
  static constexpr std::array<std::string_view, 16> kWords{
      "the", "king", "and",  "of", "a",    "night", "love", "sword",
      "to",  "thou", "hath", "no", "come", "good",  "my",   "lord"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += kWords[random() % kWords.size()];
    text += random() % 9 == 0 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

ProgramResult run_program(const std::vector<std::string>& command, std::chrono::seconds limit) {
  const Scratch scratch;
  const fs::path out = scratch.path() / "out";
  const fs::path err = scratch.path() / "err";
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  constexpr int kWrite = O_WRONLY | O_CREAT | O_TRUNC;
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), kWrite, 0600);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), kWrite, 0600);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = child_environment();
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, command[0].c_str(), &files, &attributes,
                                    pointers(arguments).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error("cannot start " + command[0]);
  const int code = wait_for(child, limit);
  return {code, read_whole(out), read_whole(err)};
}

}  // namespace convoy::testing
