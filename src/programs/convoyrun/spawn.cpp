// fork, a few steps that are safe between fork and exec, exec.
#include "programs/convoyrun/spawn.h"

#include "convoy/base/error.h"
#include "programs/convoyrun/guard.h"
#include "programs/convoyrun/signals.h"

#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

// Everything the child needs, prepared by the parent: the child allocates nothing.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int stdin_fd, stdout_fd, stderr_fd;
  const cpu_set_t* cores;  // null: not bound
  std::size_t cores_bytes;
  int guard_fd;
  int status_fd;
  pid_t launcher;
  const sigset_t& signal_mask;
};

[[noreturn]] void give_up(int status_fd, StartProblem::Step step, int error_number) {
  const StartProblem problem{step, error_number};
  [[maybe_unused]] const auto written = ::write(status_fd, &problem, sizeof(problem));
  ::_exit(127);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  // Dies with the launcher, also if the launcher died before this call.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) ::_exit(127);
  ::setpgid(0, 0);
  announce_group(plan.guard_fd, ::getpid());

  if (::dup2(plan.stdin_fd, STDIN_FILENO) < 0 || ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0 ||
      ::dup2(plan.stderr_fd, STDERR_FILENO) < 0) {
    give_up(plan.status_fd, StartProblem::Step::kRedirect, errno);
  }
  if (plan.cores != nullptr && ::sched_setaffinity(0, plan.cores_bytes, plan.cores) != 0) {
    give_up(plan.status_fd, StartProblem::Step::kBind, errno);
  }
  give_back_signals(plan.signal_mask);
  ::execve(plan.path, plan.arguments, plan.environment);
  give_up(plan.status_fd, StartProblem::Step::kExec, errno);
}

// The CPU set with one core, as bytes.
std::vector<unsigned long> one_core(int core) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  const auto index = static_cast<std::size_t>(core);
  std::vector<unsigned long> words(index / kBits + 1);
  words.back() = 1UL << (index % kBits);
  return words;
}

}  // namespace

Spawned spawn(SpawnRequest request) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("cannot make a pipe for a rank", errno);
  Fd read_end(ends[0]);
  const Fd write_end(ends[1]);

  std::vector<std::string> arguments = request.command.arguments;
  std::vector<char*> argument_pointers;
  argument_pointers.reserve(arguments.size() + 1);
  for (auto& argument : arguments) argument_pointers.push_back(argument.data());
  argument_pointers.push_back(nullptr);
  const std::vector<char*> environment = request.environment.pointers();
  const auto cores = request.core ? one_core(*request.core) : std::vector<unsigned long>();
  const ChildPlan plan{
      .path = request.command.path.c_str(),
      .arguments = argument_pointers.data(),
      .environment = environment.data(),
      .stdin_fd = request.stdin_fd,
      .stdout_fd = request.stdout_fd,
      .stderr_fd = request.stderr_fd,
      .cores = cores.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(cores.data()),
      .cores_bytes = cores.size() * sizeof(unsigned long),
      .guard_fd = request.guard_fd,
      .status_fd = write_end.get(),
      .launcher = ::getpid(),
      .signal_mask = request.signal_mask,
  };
  const pid_t pid = ::fork();
  if (pid < 0) throw_system_error("cannot start a process for a rank", errno);
  if (pid == 0) run_child(plan);
  // Here too, so that the group exists when the launcher signals it right now. Fails harmlessly
  // when the child has already done it and executed its program.
  ::setpgid(pid, pid);
  return {pid, std::move(read_end)};
}

std::optional<StartProblem> read_start_status(int start_status_fd) {
  StartProblem problem;
  ssize_t count;
  do {
    count = ::read(start_status_fd, &problem, sizeof(problem));
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof(problem))) return std::nullopt;
  return problem;
}

}  // namespace convoy::launcher
