// convoyrun: starts the ranks of a job on this host and looks after them. See docs/launcher.md.
#include "convoy/base/check.h"
#include "convoy/version.h"
#include "programs/convoyrun/launch.h"
#include "programs/convoyrun/options.h"
#include "programs/convoyrun/program.h"

#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace convoy::launcher;

constexpr int kOwnFailure = 1;
constexpr int kUsage = 2;

std::string version_line() {
  const auto build = convoy::build_info();
  return convoy::concat("convoyrun ", build.version, " (", build.commit, ", ", build.build_type,
                        ", ", build.compiler, ")\n");
}

int run(const std::vector<std::string>& argv, const char* const* environment) {
  const CommandLine line = parse_command_line(std::span(argv).subspan(1));
  switch (line.action) {
    case Action::kHelp: std::cout << help_text(); return 0;
    case Action::kVersion: std::cout << version_line(); return 0;
    case Action::kRun: return launch(line.options, argv, environment);
  }
  return kOwnFailure;
}

}  // namespace

int main(int argc, char** argv, char** environment) {
  const auto complain = [](const std::exception& error) {
    std::cerr << "convoyrun: error: " << error.what() << std::endl;
  };
  try {
    return run({argv, argv + argc}, environment);
  } catch (const UsageError& error) {
    complain(error);
    return kUsage;
  } catch (const NotRunnable& error) {
    complain(error);
    return error.exit_code();
  } catch (const std::exception& error) {
    complain(error);
    return kOwnFailure;
  }
}
