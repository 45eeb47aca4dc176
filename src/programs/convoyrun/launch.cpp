// Decides everything about a run, runs it, and tells how it ended.
#include "programs/convoyrun/launch.h"

#include "convoy/base/check.h"
#include "convoy/control/channel.h"
#include "programs/convoyrun/master_port.h"
#include "programs/convoyrun/report_file.h"
#include "programs/convoyrun/signal_source.h"
#include "programs/convoyrun/signals.h"
#include "programs/convoyrun/supervisor.h"
#include "programs/convoyrun/text.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>

namespace convoy::launcher {

namespace {

// Sorts by time, and differs between runs that start in the same second.
std::string make_run_id(const std::string& control_address) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &utc);
  // The address ends with random digits. These few of them give nothing away: what guards the
  // channel is the check of the peer's user.
  return concat(text.data(), "-", control_address.substr(control_address.size() - 6));
}

ProgramSearch program_search(const EnvironmentBlock& environment, bool no_python) {
  ProgramSearch search;
  search.no_python = no_python;
  if (const auto path = environment.find("PATH")) search.path = *path;
  if (const auto python = environment.find("PYTHON_EXEC"); python && !python->empty()) {
    search.python = *python;
  }
  return search;
}

JobPlan make_plan(const Options& options, const EnvironmentBlock& environment,
                  const std::string& control_address) {
  const auto cores = usable_cores();
  const int ranks = options.ranks > 0 ? options.ranks : static_cast<int>(cores.size());
  const int named = std::max(options.tee.highest_rank(), options.redirects.highest_rank());
  if (named >= ranks) {
    throw UsageError(concat("--tee or --redirects names local rank ", named, ", but there are ",
                            ranks, " ranks"));
  }
  JobPlan plan;
  plan.run_id = make_run_id(control_address);
  plan.host = host_name();
  plan.control_address = control_address;
  plan.command = resolve_program(options.program, program_search(environment, options.no_python));
  plan.environment = environment;
  plan.shutdown_timeout = options.shutdown_timeout;
  for (int rank = 0; rank < ranks; ++rank) {
    plan.cores.push_back(core_for_rank(options.bind_to, cores, rank));
  }
  plan.variables.run_id = plan.run_id;
  plan.variables.control_address = control_address;
  plan.variables.world_size = ranks;
  if (environment.find("OMP_NUM_THREADS").value_or("").empty()) {
    plan.variables.omp_num_threads =
        std::to_string(threads_per_rank(options.bind_to, static_cast<int>(cores.size()), ranks));
  }
  return plan;
}

// What was decided for the user and is not on the command line.
std::string describe_start(const Options& options, const JobPlan& plan, const LogFiles& logs) {
  const auto count = plan.variables.world_size;
  std::string text = concat("run ", plan.run_id, ": ", count, count == 1 ? " rank" : " ranks");
  const auto cores = usable_cores().size();
  if (options.ranks == 0)
    text += concat(" (auto: ", cores, cores == 1 ? " usable core)" : " usable cores)");
  if (!plan.variables.omp_num_threads.empty()) {
    text += concat(", OMP_NUM_THREADS=", plan.variables.omp_num_threads, " for each (");
    text += options.bind_to == BindTo::kCore
                ? std::string("bound to one core)")
                : concat(cores, " usable cores / ", count, count == 1 ? " rank)" : " ranks)");
  }
  if (!logs.folder().empty()) text += concat(", logs in ", logs.folder());
  return text;
}

void tell_failure(const Outcome& outcome, Console& console) {
  if (!outcome.first_failure) return;
  const auto block = describe_failure(outcome);
  for (const auto& line : block.head) console.say(line);
  for (const auto& line : outcome.stderr_tail) {
    console.rank_line(outcome.first_failure->rank, Stream::kErr, line);
  }
  for (const auto& line : block.later) console.say(line);
}

}  // namespace

int launch(const Options& options, const Invocation& invocation) {
  const sigset_t mask = take_signals();
  const auto control_address = ControlAddress::random("convoy").to_string();
  JobPlan plan =
      make_plan(options, EnvironmentBlock::copy_of(invocation.environment), control_address);
  plan.signal_mask = mask;
  std::optional<ReportFile> report;
  if (!options.report.empty()) report.emplace(options.report);
  const MasterPort master_port(options.master_port);
  plan.variables.master_port = master_port.port();
  const LogFiles logs(options, plan.run_id, plan.variables.world_size);

  Guard guard(concat("CONVOY_CONTROL=", control_address), invocation.command_line_memory);
  EventLoop loop;
  Console console(loop, options.quiet);
  console.note(describe_start(options, plan, logs));
  Supervisor supervisor(loop, console, logs, guard, plan);
  const SignalSource signals(loop, [&](int signal_number) { supervisor.on_signal(signal_number); });

  Outcome outcome = supervisor.run();
  if (report) {
    try {
      report->write(report_json(outcome, invocation.argv));
    } catch (const Error& error) {
      console.say(error.what());
      if (outcome.exit_code == 0) outcome.exit_code = 1;
    }
  }
  // Last on stderr, where people and scripts look.
  tell_failure(outcome, console);
  if (!outcome.not_runnable.empty()) console.say(concat("error: ", outcome.not_runnable));
  guard.dismiss();
  supervisor.finish_output();
  return outcome.exit_code;
}

}  // namespace convoy::launcher
