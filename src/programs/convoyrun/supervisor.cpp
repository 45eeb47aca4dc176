// The states of a job, and what moves it from one to the next.
#include "programs/convoyrun/supervisor.h"

#include "convoy/base/check.h"
#include "programs/convoyrun/signals.h"
#include "programs/convoyrun/text.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>

namespace convoy::launcher {

namespace {

// Seconds. What ranks on the control channel get to fail in their own words.
constexpr double kNoticeTime = 1;
// After SIGKILL; only a process that hangs in the kernel needs longer, and it is not waited for.
constexpr double kKillTime = 5;
// Who floods the control channel shall not flood the output as well.
constexpr int kMostRefusals = 10;
// Until it is certain that ranks wait in the store for a rank that has left.
constexpr double kAbandonedTime = 2;

// How long pipes are read that some escaped process keeps open, and how long a reader is waited for
// once a signal has said that it is too slow.
constexpr auto kDrainTime = std::chrono::seconds(1);
constexpr auto kHurriedTime = std::chrono::milliseconds(200);

bool is_allowed(Stage from, Stage to) {
  switch (from) {
    case Stage::kRunning: return true;
    case Stage::kNotice: return to != Stage::kRunning && to != Stage::kNotice;
    case Stage::kTerminating: return to == Stage::kKilling || to == Stage::kEnded;
    case Stage::kKilling: return to == Stage::kEnded;
    case Stage::kEnded: return false;
  }
  return false;
}

std::string describe_death(const RankRecord& rank, const std::string& host) {
  std::string text = concat("rank ", rank.rank, " (host ", host, ", pid ", rank.pid, ") ");
  if (rank.ending->signal) {
    text += concat("was ended by ", signal_name(*rank.ending->signal));
    if (*rank.ending->signal == SIGKILL) text += " (maybe the out-of-memory killer)";
  } else {
    text += concat("ended with exit code ", rank.ending->exit_code.value_or(0));
  }
  return text + concat(" after ", format_seconds(rank.ending->seconds),
                       "; its last operation: ", describe_operation(rank.mark));
}

}  // namespace

Supervisor::Supervisor(EventLoop& loop, Console& console, const LogFiles& logs, Guard& guard,
                       const JobPlan& plan)
    : loop_(loop),
      console_(console),
      logs_(logs),
      plan_(plan),
      processes_(loop, guard, plan.variables.world_size,
                 {.on_start_problem = [this](int r, const auto& p) { on_start_problem(r, p); },
                  .on_ended = [this](RankRecord& rank) { on_rank_ended(rank); }}),
      outputs_(loop, console, logs),
      control_(loop, plan.control_address, plan.run_id, plan.variables.world_size,
               {.on_joined =
                    [this](int rank, pid_t pid) {
                      processes_.ranks()[static_cast<std::size_t>(rank)].joined_pid = pid;
                    },
                .on_report =
                    [this](const FailureReport& report) {
                      reports_.push_back({report, processes_.now()});
                    },
                .on_refused = [this](const std::string& reason) { on_refused(reason); }}),
      liveness_({}, is_stopped_by_signal) {}

void Supervisor::enter(Stage to) {
  CONVOY_CHECK(is_allowed(stage_, to), "job stage ", static_cast<int>(stage_), " -> ",
               static_cast<int>(to));
  stage_ = to;
}

void Supervisor::start_ranks() {
  const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw_system_error("cannot open /dev/null", errno);
  for (int rank = 0; rank < plan_.variables.world_size; ++rank) {
    const Fd out = outputs_.open(rank, Stream::kOut);
    const Fd err = outputs_.open(rank, Stream::kErr);
    processes_.start(rank,
                     {.command = plan_.command,
                      .environment = rank_environment(plan_.environment, plan_.variables, rank),
                      .stdin_fd = nothing.get(),
                      .stdout_fd = out.get(),
                      .stderr_fd = err.get(),
                      .core = plan_.cores[static_cast<std::size_t>(rank)],
                      .guard_fd = processes_.guard_fd(),
                      .signal_mask = plan_.signal_mask});
  }
}

Outcome Supervisor::run() {
  start_ranks();
  while (stage_ != Stage::kEnded) {
    loop_.run_once(next_deadline());
    on_time();
    outputs_.resume();
    console_.flush();
    if (stage_ != Stage::kEnded && !processes_.is_any_running()) enter(Stage::kEnded);
  }
  processes_.end_leftovers(std::chrono::seconds(2));
  drain_outputs();
  return conclude();
}

void Supervisor::on_signal(int signal_number) {
  if (signal_number == SIGCHLD) {
    if (processes_.reap() == 0) look_at_liveness();
    return;
  }
  const auto notices = notice_signals();
  if (std::find(notices.begin(), notices.end(), signal_number) != notices.end()) {
    for (const auto& rank : processes_.ranks()) processes_.signal_rank(rank.rank, signal_number);
    return;
  }
  switch (stage_) {
    case Stage::kRunning: tell_to_stop(signal_number); break;
    case Stage::kNotice:
    case Stage::kTerminating:
      console_.say(concat(signal_name(signal_number), ": killing what is left"));
      is_hurried_ = true;
      kill_all();
      break;
    case Stage::kKilling:
    case Stage::kEnded: is_hurried_ = true; break;
  }
}

void Supervisor::tell_to_stop(int signal_number) {
  told_by_ = signal_number;
  console_.note(
      concat(signal_name(signal_number), ": passed on; ranks have ",
             format_seconds(std::chrono::duration<double>(plan_.shutdown_timeout).count()),
             " to end, a second signal kills them"));
  terminate(signal_number);
}

void Supervisor::fail(int rank, const std::string& text) {
  control_.announce_failure(rank, text);
  if (stage_ != Stage::kRunning) return;
  enter(Stage::kNotice);
  stage_end_ = processes_.now() + kNoticeTime;
  bool has_listeners = false;
  for (const auto& other : processes_.ranks()) {
    if (!other.is_running()) continue;
    // A rank that has told of its failure is on its way out, with an exit code of its own.
    if (other.has_joined() || has_reported(other.rank)) {
      has_listeners = true;
    } else {
      processes_.signal_group(other.rank, SIGTERM);
    }
  }
  if (!has_listeners) terminate(SIGTERM);
}

bool Supervisor::has_reported(int rank) const {
  return std::any_of(reports_.begin(), reports_.end(),
                     [rank](const auto& timed) { return timed.report.reporter == rank; });
}

void Supervisor::terminate(int signal_number) {
  enter(Stage::kTerminating);
  stage_end_ = processes_.now() + std::chrono::duration<double>(plan_.shutdown_timeout).count();
  for (const auto& rank : processes_.ranks()) {
    if (!rank.was_signalled) processes_.signal_group(rank.rank, signal_number);
    // A stopped process takes no other signal before it goes on.
    processes_.signal_group(rank.rank, SIGCONT);
  }
}

void Supervisor::kill_all() {
  enter(Stage::kKilling);
  stage_end_ = processes_.now() + kKillTime;
  for (const auto& rank : processes_.ranks()) processes_.signal_group(rank.rank, SIGKILL);
}

void Supervisor::on_refused(const std::string& reason) {
  ++refused_;
  if (refused_ > kMostRefusals) return;
  console_.say(concat("a connection was refused: ", reason));
  if (refused_ == kMostRefusals) console_.say("further refused connections are not told");
}

void Supervisor::on_start_problem(int rank, const StartProblem& problem) {
  if (not_runnable_ || told_by_) return;
  switch (problem.step) {
    case StartProblem::Step::kExec:
      not_runnable_ = refused_by_exec(plan_.command, problem.error_number);
      break;
    case StartProblem::Step::kBind:
      not_runnable_.emplace(1, concat("cannot bind rank ", rank, " to core ",
                                      plan_.cores[static_cast<std::size_t>(rank)].value_or(-1),
                                      ": ", std::generic_category().message(problem.error_number)));
      break;
    case StartProblem::Step::kRedirect:
      not_runnable_.emplace(1, concat("cannot redirect the output of rank ", rank, ": ",
                                      std::generic_category().message(problem.error_number)));
      break;
  }
  if (stage_ != Stage::kKilling) kill_all();
}

void Supervisor::on_rank_ended(RankRecord& rank) {
  rank.mark = control_.rank_ended(rank.rank);
  if (rank.has_failed() && !told_by_) fail(rank.rank, describe_death(rank, plan_.host));
}

void Supervisor::on_time() {
  const double now = processes_.now();
  if (now >= liveness_.next_look()) {
    look_at_liveness();
    look_for_abandoned();
  }
  if (stage_ == Stage::kRunning || now < stage_end_) return;
  std::vector<int> running;
  for (const auto& rank : processes_.ranks()) {
    if (rank.is_running()) running.push_back(rank.rank);
  }
  if (running.empty()) return;
  switch (stage_) {
    case Stage::kNotice: terminate(SIGTERM); break;
    case Stage::kTerminating:
      console_.say(
          concat(list_ranks(running), " did not end within ",
                 format_seconds(std::chrono::duration<double>(plan_.shutdown_timeout).count()),
                 " of ", signal_name(told_by_.value_or(SIGTERM)), ": killed"));
      kill_all();
      break;
    case Stage::kKilling:
      console_.say(concat(list_ranks(running),
                          " cannot be killed (a system call hangs); leaving without waiting"));
      enter(Stage::kEnded);
      break;
    case Stage::kRunning:
    case Stage::kEnded: break;
  }
}

void Supervisor::look_at_liveness() {
  const double now = processes_.now();
  for (const auto& finding : liveness_.look(processes_.ranks(), now)) {
    auto& rank = processes_.ranks()[static_cast<std::size_t>(finding.rank)];
    const auto who = concat("rank ", rank.rank, " (pid ", rank.pid, ")");
    const auto duration = format_seconds(now - finding.stopped_since);
    switch (finding.what) {
      case Liveness::Finding::What::kWarn:
        console_.say(concat(who, " has been stopped (state T) for ", duration,
                            "; it is given up after 5 s"));
        break;
      case Liveness::Finding::What::kMovesAgain:
        console_.say(concat(who, " goes on after a stop of ", duration));
        break;
      case Liveness::Finding::What::kGiveUp:
        console_.say(concat(who, " is stopped (state T) since ", duration, ": killed"));
        rank.stopped_since = finding.stopped_since;
        processes_.signal_group(rank.rank, SIGKILL);
        if (!told_by_) {
          fail(rank.rank, concat("rank ", rank.rank, " (host ", plan_.host, ", pid ", rank.pid,
                                 ") is stopped (state T) since ", duration));
        }
        break;
    }
  }
}

void Supervisor::look_for_abandoned() {
  const int leaver = stage_ == Stage::kRunning ? control_.abandoned_by(processes_.ranks()) : -1;
  const double now = processes_.now();
  if (leaver < 0) {
    abandoned_since_ = -1;
  } else if (abandoned_since_ < 0) {
    abandoned_since_ = now;
  } else if (now - abandoned_since_ >= kAbandonedTime) {
    left_early_ = leaver;
    fail(leaver, concat("rank ", leaver,
                        " has left the job, and all other ranks wait in the store "
                        "for something that nobody is left to give"));
  }
}

Deadline Supervisor::next_deadline() const {
  double next = liveness_.next_look();
  if (stage_ != Stage::kRunning) next = std::min(next, stage_end_);
  const std::chrono::duration<double> left(std::max(0.0, next - processes_.now()));
  return Deadline::after(std::chrono::ceil<std::chrono::nanoseconds>(left));
}

void Supervisor::drain_outputs() {
  // A pipe ends when nobody has its other end. All ranks are gone, so only a process that got away
  // can keep one open, and that one is not waited for. A slow reader of the console is.
  auto deadline = Deadline::after(kDrainTime);
  while (!outputs_.are_closed() && !deadline.expired()) {
    if (is_hurried_) deadline = deadline.sooner(kHurriedTime);
    loop_.run_once(deadline);
    outputs_.resume();
    console_.flush();
    if (outputs_.is_paused() && !is_hurried_) deadline = Deadline::after(kDrainTime);
  }
  outputs_.close_all();
}

void Supervisor::finish_output() {
  std::optional<Deadline> deadline;
  console_.flush();
  while (!console_.is_drained() && !(deadline && deadline->expired())) {
    if (is_hurried_ && !deadline) deadline = Deadline::after(kHurriedTime);
    loop_.run_once(deadline);
  }
}

Outcome Supervisor::conclude() {
  Outcome outcome;
  outcome.run_id = plan_.run_id;
  outcome.host = plan_.host;
  outcome.seconds = processes_.now();
  outcome.ranks = processes_.ranks();
  if (not_runnable_) {
    outcome.not_runnable = not_runnable_->what();
    outcome.exit_code = not_runnable_->exit_code();
    return outcome;
  }
  if (told_by_) {
    outcome.exit_code = 128 + *told_by_;
    return outcome;
  }
  outcome.first_failure = find_first_failure(outcome.ranks, reports_);
  if (left_early_) {
    outcome.first_failure =
        FirstFailure{*left_early_, concat("rank ", *left_early_,
                                          " left the job while all others waited in the "
                                          "store for something it did not give")};
  }
  if (!outcome.first_failure) return outcome;
  const int rank = outcome.first_failure->rank;
  outcome.exit_code = exit_code_of(*outcome.first_failure, outcome.ranks);
  outcome.stderr_tail = outputs_.stderr_tail(rank);
  for (const Stream stream : {Stream::kErr, Stream::kOut}) {
    if (outcome.log_path.empty() && logs_.keeps(rank, stream)) {
      outcome.log_path = logs_.path(rank, stream);
    }
  }
  return outcome;
}

}  // namespace convoy::launcher
