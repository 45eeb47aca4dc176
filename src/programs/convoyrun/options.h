// The command line of convoyrun as a plain struct. Pure: reads arguments, touches nothing else.
#pragma once

#include "programs/convoyrun/cores.h"
#include "programs/convoyrun/stream_choice.h"

#include <chrono>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace convoy::launcher {

/// A mistake on the command line. One line, says what would be right. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  int ranks = 1;  ///< 0 means one for each usable core ("auto").
  BindTo bind_to = BindTo::kNone;
  int master_port = 0;  ///< 0 means a free one.

  std::string log_dir;     ///< Empty: none was given.
  StreamChoice tee;        ///< Streams that go to a file and to the console.
  StreamChoice redirects;  ///< Streams that go to a file only.
  std::string report;      ///< Empty: no report.
  bool quiet = false;      ///< No lines of the launcher itself but warnings and failures.

  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(30);
  bool no_python = false;  ///< A *.py program is started as it is.

  std::vector<std::string> program;  ///< Program and its arguments.
};

enum class Action { kRun, kHelp, kVersion };

struct CommandLine {
  Action action = Action::kRun;
  Options options;
};

/// Understands the arguments, without the name of the launcher itself. Everything from the first
/// word that is no flag (or from behind "--") belongs to the program. Flags may be written with
/// dashes or underscores, as `--flag value` or `--flag=value`. Error: UsageError.
CommandLine parse_command_line(std::span<const std::string> arguments);

/// The text of --help.
std::string help_text();

}  // namespace convoy::launcher
