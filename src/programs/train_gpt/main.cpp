// The program train_gpt.
#include "convoy/base/env.h"
#include "convoy/base/exception_text.h"
#include "convoy/rendezvous/guarded_main.h"
#include "convoy/rendezvous/job.h"
#include "programs/train_gpt/events.h"
#include "programs/train_gpt/train.h"

#include <cstdio>

namespace convoy::train_gpt {
namespace {

/// What went wrong is what matters: that the log takes no more, perhaps for the same reason, does
/// not cover it up.
void tell_log(EventLog& log, const JsonLine& event) {
  try {
    log.write(event);
  } catch (const Error&) {
  }
}

int run(int argc, char** argv) {
  const ParsedCommandLine command = parse_command_line(argc, argv);
  if (command.text) {
    if (read_environment().rank.value_or(0) == 0) std::fputs(command.text->c_str(), stdout);
    return 0;
  }
  const auto allocations = profile::install_counting_allocator();
  const Job job = Job::from_environment();
  EventLog log(command.options.json, /*is_writer=*/job.rank() == 0);
  try {
    train(job, command.options, *allocations, log);
  } catch (const Error& error) {
    const int blamed = error.rank() >= 0 ? error.rank() : job.rank();
    tell_log(log, error_event(blamed, to_string(error.kind()), exception_text(error)));
    throw;
  } catch (const std::exception& error) {
    tell_log(log, error_event(job.rank(), "exception", exception_text(error)));
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace convoy::train_gpt

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::train_gpt::run); }
