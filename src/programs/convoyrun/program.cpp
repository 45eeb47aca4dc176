// Looks the program up, so that a wrong name is one clear line before anything is started.
#include "programs/convoyrun/program.h"

#include "convoy/base/check.h"

#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

bool is_missing(int error_number) { return error_number == ENOENT || error_number == ENOTDIR; }

// 0 if the file can be executed, else what stands in the way.
int why_not_executable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

std::string find_executable(const std::string& name, std::string_view folders) {
  if (name.find('/') != std::string::npos) {
    const int problem = why_not_executable(name);
    if (problem == 0) return name;
    throw NotRunnable(is_missing(problem) ? kNotFound : kNotExecutable,
                      concat("cannot run ", name, ": ", reason(problem)));
  }
  std::optional<NotRunnable> seen;
  for (;;) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    std::string candidate = concat(folder.empty() ? "." : folder, "/", name);
    const int problem = why_not_executable(candidate);
    if (problem == 0) return candidate;
    if (!is_missing(problem) && problem != EISDIR && !seen) {
      seen.emplace(kNotExecutable, concat("cannot run ", candidate, ": ", reason(problem)));
    }
    if (folder.size() == folders.size()) break;
    folders.remove_prefix(folder.size() + 1);
  }
  if (seen) throw *seen;
  const bool is_here = !name.empty() && ::access(name.c_str(), F_OK) == 0;
  throw NotRunnable(kNotFound,
                    concat("cannot run ", name, ": not found in PATH",
                           is_here ? concat("; for the file in this folder write ./", name) : ""));
}

}  // namespace

Command resolve_program(const std::vector<std::string>& program, const ProgramSearch& search) {
  const std::string& name = program.front();
  if (search.no_python || !name.ends_with(".py")) {
    return {find_executable(name, search.path), program};
  }

  struct stat info {};
  if (::stat(name.c_str(), &info) != 0) {
    throw NotRunnable(is_missing(errno) ? kNotFound : kNotExecutable,
                      concat("cannot run ", name, ": ", reason(errno)));
  }
  if (S_ISDIR(info.st_mode)) {
    throw NotRunnable(kNotExecutable, concat("cannot run ", name, ": ", reason(EISDIR)));
  }
  if (::access(name.c_str(), R_OK) != 0) {
    throw NotRunnable(kNotExecutable, concat("cannot run ", name, ": ", reason(errno)));
  }
  Command command{find_executable(search.python, search.path), {search.python, "-u"}};
  command.arguments.insert(command.arguments.end(), program.begin(), program.end());
  return command;
}

NotRunnable refused_by_exec(const Command& command, int error_number) {
  std::string hint;
  if (error_number == ENOEXEC) hint = " (a script needs a first line such as #!/bin/sh)";
  // The file was there a moment ago, so it is the interpreter in its first line that is missing.
  if (error_number == ENOENT) hint = " (is the interpreter in its first line there?)";
  return {is_missing(error_number) ? kNotFound : kNotExecutable,
          concat("cannot run ", command.path, ": ", reason(error_number), hint)};
}

}  // namespace convoy::launcher
