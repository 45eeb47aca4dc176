// Process groups, wait4, and the children that ranks leave behind.
#include "programs/convoyrun/rank_processes.h"

#include "convoy/base/deadline.h"
#include "convoy/base/error.h"
#include "convoy/base/parse.h"
#include "convoy/base/process.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

// Children of this process. One small file where the kernel has it, else all of /proc.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  if (std::ifstream file("/proc/thread-self/children"); file) {
    for (pid_t pid; file >> pid;) found.push_back(pid);
    return found;
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto number = parse_int(entry.path().filename().native(), 1);
    if (!number) continue;
    const auto pid = static_cast<pid_t>(*number);
    const auto status = read_process_status(pid);
    if (status && status->parent == ::getpid()) found.push_back(pid);
  }
  return found;
}

void wait_for_child(std::chrono::milliseconds limit) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1000000};
  ::sigtimedwait(&child, nullptr, &time);
}

}  // namespace

RankProcesses::RankProcesses(EventLoop& loop, Guard& guard, int count, Events events)
    : loop_(loop), guard_(guard), events_(std::move(events)) {
  const auto size = static_cast<std::size_t>(count);
  ranks_.resize(size);
  for (int rank = 0; rank < count; ++rank) ranks_[static_cast<std::size_t>(rank)].rank = rank;
  start_status_.resize(size);
  group_may_live_.resize(size);
  // Descendants that lose their parent become children of the launcher instead of init's.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

RankProcesses::~RankProcesses() {
  for (const Fd& status : start_status_) {
    if (status) loop_.remove(status.get());
  }
  for (const auto& rank : ranks_) {
    if (rank.is_running()) ::kill(-rank.pid, SIGKILL);
  }
  // So that nothing of the job is left when the launcher says why; but not for ever.
  const auto deadline = Deadline::after(std::chrono::seconds(2));
  for (const auto& rank : ranks_) {
    while (rank.is_running() && ::waitpid(rank.pid, nullptr, WNOHANG) == 0 && !deadline.expired()) {
      wait_for_child(std::chrono::milliseconds(5));
    }
  }
}

double RankProcesses::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void RankProcesses::start(int rank, SpawnRequest request) {
  const auto index = static_cast<std::size_t>(rank);
  Spawned spawned = spawn(std::move(request));
  ranks_[index].pid = spawned.pid;
  start_status_[index] = std::move(spawned.start_status);
  watch_start(rank);
}

void RankProcesses::watch_start(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const int fd = start_status_[index].get();
  loop_.add(fd, EPOLLIN, [this, rank, index, fd](std::uint32_t) {
    const auto problem = read_start_status(fd);
    loop_.remove(fd);
    start_status_[index].reset();
    if (problem) events_.on_start_problem(rank, *problem);
  });
}

int RankProcesses::reap() {
  // All ends are recorded before the first is told of: what follows from one end (signals to the
  // other ranks) must not be taken for the cause of another that was there already.
  int count = 0;
  std::vector<RankRecord*> ended;
  for (;; ++count) {
    int status = 0;
    rusage usage{};
    const pid_t pid = ::wait4(-1, &status, WNOHANG, &usage);
    if (pid <= 0) break;
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return rank.pid == pid && rank.is_running();
    });
    if (found == ranks_.end()) continue;
    record_end(*found, status, std::int64_t{usage.ru_maxrss} * 1024);
    ended.push_back(&*found);
  }
  for (RankRecord* rank : ended) tell_end(*rank);
  return count;
}

void RankProcesses::record_end(RankRecord& rank, int status, std::int64_t max_rss) {
  Ending ending;
  if (WIFSIGNALED(status)) {
    ending.signal = WTERMSIG(status);
  } else {
    ending.exit_code = WEXITSTATUS(status);
  }
  ending.seconds = now();
  ending.max_rss = max_rss;
  rank.ending = ending;

  // While the group has members its number is taken; once it has none, the number can become
  // somebody else's, and must not be signalled again.
  const bool has_members = ::kill(-rank.pid, 0) == 0;
  group_may_live_[static_cast<std::size_t>(rank.rank)] = has_members;
  if (!has_members) forget_group(guard_.fd(), rank.pid);
}

void RankProcesses::tell_end(RankRecord& rank) {
  // Whether the program was executed at all is known by now, though perhaps not yet read.
  auto& start = start_status_[static_cast<std::size_t>(rank.rank)];
  if (start) {
    const auto problem = read_start_status(start.get());
    loop_.remove(start.get());
    start.reset();
    if (problem) {
      events_.on_start_problem(rank.rank, *problem);
      return;
    }
  }
  events_.on_ended(rank);
}

void RankProcesses::signal_group(int rank, int signal_number) {
  auto& record = ranks_[static_cast<std::size_t>(rank)];
  if (!record.is_running()) return;
  if (signal_number == SIGKILL) {
    record.was_killed = true;
  } else if (signal_number != SIGCONT) {
    record.was_signalled = true;
  }
  ::kill(-record.pid, signal_number);
}

void RankProcesses::signal_rank(int rank, int signal_number) {
  const auto& record = ranks_[static_cast<std::size_t>(rank)];
  if (record.is_running()) ::kill(record.pid, signal_number);
}

void RankProcesses::end_leftovers(std::chrono::milliseconds limit) {
  for (const auto& rank : ranks_) {
    if (rank.ending && group_may_live_[static_cast<std::size_t>(rank.rank)]) {
      ::kill(-rank.pid, SIGKILL);
    }
  }
  const auto deadline = Deadline::after(limit);
  for (;;) {
    reap();
    auto adopted = children();
    std::erase(adopted, guard_.pid());
    if (adopted.empty() || deadline.expired()) return;
    for (const pid_t pid : adopted) ::kill(pid, SIGKILL);
    // Their own children are handed on to the launcher in turn. In short steps, because a SIGCHLD
    // that came before this wait can have been taken already.
    wait_for_child(std::chrono::milliseconds(5));
  }
}

bool RankProcesses::is_any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.is_running(); });
}

}  // namespace convoy::launcher
