// Finds what to execute for the program that was named on the command line.
#pragma once

#include "convoy/base/error.h"

#include <string>
#include <vector>

namespace convoy::launcher {

/// The program cannot be started. One line with path and reason; the exit code is a shell's: 127
/// where there is no such file, 126 where it cannot be executed.
class NotRunnable : public Error {
 public:
  NotRunnable(int exit_code, const std::string& message)
      : Error(ErrorKind::kInvalidArgument, message), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

/// What execve() gets.
struct Command {
  std::string path;                    ///< A path, never a bare name.
  std::vector<std::string> arguments;  ///< argv, the program's name first.
};

/// How names are looked up.
struct ProgramSearch {
  std::string path = "/usr/local/bin:/usr/bin:/bin";  ///< Folders for names without a slash.
  std::string python = "python3";                     ///< Interpreter for *.py programs.
  bool no_python = false;                             ///< Start *.py programs as they are.
};

/// Resolves the program as a shell would, and puts the interpreter (with -u, so that output comes
/// line by line) before a *.py program. Only looks at files. Error: NotRunnable.
Command resolve_program(const std::vector<std::string>& program, const ProgramSearch& search);

/// The NotRunnable for a program that execve() refused.
NotRunnable refused_by_exec(const Command& command, int error_number);

}  // namespace convoy::launcher
