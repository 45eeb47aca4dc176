// Turns an exception of the program into one line, a report and an exit code.
#include "convoy/rendezvous/guarded_main.h"

#include "convoy/base/check.h"
#include "convoy/base/env.h"
#include "convoy/base/exception_text.h"
#include "convoy/base/freed_memory.h"
#include "convoy/base/standard_streams.h"
#include "convoy/control/control_client.h"
#include "rendezvous/launch_environment.h"

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <cxxabi.h>
#include <unistd.h>

namespace convoy {
namespace {

constexpr int kUsageCode = 2;
constexpr int kErrorCode = 1;

void print(std::string_view text) {
  const auto line = concat("error: ", text, "\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::optional<LaunchEnvironment> launcher() {
  try {
    Environment env = read_environment();
    env.problems.clear();  // A wrong CONVOY_LOG, say, does not keep this rank from its launcher.
    return launch_environment(env);
  } catch (const Error&) {
    return std::nullopt;  // The environment itself may be what the error is about.
  }
}

int end_with(ErrorKind kind, std::optional<int> about, const std::string& text) {
  if (const auto launch = launcher()) {
    const int rank = launch->info.rank;
    const FailureReport report{rank, about.value_or(rank), kind, text};
    const FailureMessenger messenger(launch->control, report);
    if (messenger.should_print()) print(text);
  } else {
    print(text);
  }
  return kind == ErrorKind::kInvalidArgument ? kUsageCode : kErrorCode;
}

}  // namespace

int guarded_main(int argc, char** argv, int (*body)(int argc, char** argv)) {
  hold_standard_streams();
  if (read_environment().keeps_freed_memory) keep_freed_memory();
  try {
    return body(argc, argv);
  } catch (const Error& error) {
    return end_with(error.kind(), error.rank(), exception_text(error));
  } catch (const std::bad_alloc&) {
    return end_with(ErrorKind::kMemory, std::nullopt, "out of memory");
  } catch (const std::exception& error) {
    return end_with(ErrorKind::kFailed, std::nullopt, exception_text(error));
  } catch (const abi::__forced_unwind&) {
    throw;  // The thread is being cancelled; that must not be stopped.
  } catch (...) {
    return end_with(ErrorKind::kFailed, std::nullopt, "an exception of an unknown type");
  }
}

}  // namespace convoy
