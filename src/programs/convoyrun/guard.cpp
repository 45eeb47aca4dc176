// The guard process and what it does when its launcher is gone.
#include "programs/convoyrun/guard.h"

#include "convoy/base/error.h"
#include "convoy/base/parse.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace convoy::launcher {

namespace {

struct Message {
  enum class What : std::int32_t { kGroup, kForget, kDismiss };
  What what;
  pid_t group;
};

void send(int guard_fd, Message message) noexcept {
  [[maybe_unused]] const auto written = ::write(guard_fd, &message, sizeof(message));
}

bool has_entry(const std::string& environment, std::string_view mark) {
  std::size_t begin = 0;
  while (begin < environment.size()) {
    const std::size_t end = std::min(environment.find('\0', begin), environment.size());
    if (std::string_view(environment).substr(begin, end - begin) == mark) return true;
    begin = end + 1;
  }
  return false;
}

// Kills `pid` if its environment has the mark. The pidfd is opened first, so that the process that
// was looked at and the one that is killed are the same. Returns true if it was killed.
bool kill_if_marked(pid_t pid, std::string_view mark) {
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  if (!has_entry(environment, mark)) return false;
  return ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
}

void kill_group(pid_t group) {
  // While a group lives its number is given to no new process. A process with that number whose
  // group's leader was seen to end is therefore a stranger, but the launcher has told about that.
  ::kill(-group, SIGKILL);
}

void rename_process(std::span<char> title) {
  constexpr std::string_view kName = "convoyrun-guard";
  ::prctl(PR_SET_NAME, kName.data());
  if (title.empty()) return;
  std::fill(title.begin(), title.end(), '\0');
  std::copy_n(kName.begin(), std::min(kName.size(), title.size() - 1), title.begin());
}

[[noreturn]] void run_guard(int pipe, const std::string& mark, std::span<char> title) {
  // A session of its own, all signals blocked: only SIGKILL, meant for it alone, ends it early.
  ::setsid();
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  rename_process(title);
  ::dup2(pipe, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, ~0U, 0);

  std::set<pid_t> groups;
  for (;;) {
    Message message;
    const ssize_t count = ::read(STDIN_FILENO, &message, sizeof(message));
    if (count < 0 && errno == EINTR) continue;
    if (count != static_cast<ssize_t>(sizeof(message))) break;
    switch (message.what) {
      case Message::What::kGroup: groups.insert(message.group); break;
      case Message::What::kForget: groups.erase(message.group); break;
      case Message::What::kDismiss: ::_exit(0);
    }
  }
  for (const pid_t group : groups) kill_group(group);
  kill_marked_processes(mark);
  ::_exit(0);
}

}  // namespace

void announce_group(int guard_fd, pid_t group) noexcept {
  send(guard_fd, {Message::What::kGroup, group});
}

void forget_group(int guard_fd, pid_t group) noexcept {
  send(guard_fd, {Message::What::kForget, group});
}

void kill_marked_processes(const std::string& mark) {
  // A marked process may fork while the list is read, so look until a round finds none.
  constexpr int kMaxRounds = 20;
  bool found = true;
  for (int round = 0; found && round < kMaxRounds; ++round) {
    found = false;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      const auto pid = parse_int(entry.path().filename().native(), 1);
      if (pid && *pid != ::getpid()) found |= kill_if_marked(static_cast<pid_t>(*pid), mark);
    }
  }
}

Guard::Guard(const std::string& mark, std::span<char> title) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("cannot make the guard's pipe", errno);
  Fd read_end(ends[0]);
  pipe_.reset(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_system_error("cannot start the guard process", errno);
  if (pid_ == 0) run_guard(read_end.get(), mark, title);
}

void Guard::dismiss() {
  send(pipe_.get(), {Message::What::kDismiss, 0});
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace convoy::launcher
