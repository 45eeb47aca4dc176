// convoyrun: starts the ranks of a job on this host and looks after them. See docs/launcher.md.
#include "convoy/base/check.h"
#include "convoy/base/standard_streams.h"
#include "convoy/version.h"
#include "programs/convoyrun/launch.h"
#include "programs/convoyrun/options.h"
#include "programs/convoyrun/program.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iostream>
#include <span>
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

// The kernel lays the words of the command line end to end.
std::span<char> memory_of(int argc, char** argv) {
  if (argc == 0) return {};
  char* const begin = argv[0];
  char* end = begin;
  for (int i = 0; i < argc && argv[i] == end; ++i) end += std::strlen(argv[i]) + 1;
  return {begin, end};
}

int run(const Invocation& invocation) {
  const auto words = std::span(invocation.argv);
  const CommandLine line =
      parse_command_line(words.subspan(std::min<std::size_t>(1, words.size())));
  switch (line.action) {
    case Action::kHelp: std::cout << help_text(); return 0;
    case Action::kVersion: std::cout << version_line(); return 0;
    case Action::kRun: return launch(line.options, invocation);
  }
  return kOwnFailure;
}

}  // namespace

int main(int argc, char** argv, char** environment) {
  convoy::hold_standard_streams();
  const auto complain = [](const std::exception& error) {
    std::cerr << "convoyrun: error: " << error.what() << std::endl;
  };
  try {
    return run({{argv, argv + argc}, environment, memory_of(argc, argv)});
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
