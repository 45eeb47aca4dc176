// Starts and watches worker processes.
#include "comm/rank_processes.h"

#include "convoy/base/check.h"
#include "convoy/base/deadline.h"
#include "convoy/control/control_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace convoy::test {
namespace {

ControlServerOptions server_options(int world_size) {
  ControlServerOptions options;
  options.world_size = world_size;
  options.run_id = "comm-test";
  return options;
}

std::vector<std::string> environment_of(int rank, int world_size, const std::string& address) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  const auto set = [&](const std::string& name, const std::string& value) {
    std::erase_if(result, [&](const auto& item) { return item.rfind(name + "=", 0) == 0; });
    result.push_back(name + "=" + value);
  };
  for (const auto* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(rank));
  for (const auto* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(world_size));
  set("CONVOY_CONTROL", address);
  set("CONVOY_RUN_ID", "comm-test");
  set("CONVOY_GENERATION", "0");
  set("OMP_NUM_THREADS", "1");
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Returns the pid, and the reading end of the worker's output.
std::pair<pid_t, Fd> spawn(std::vector<std::string> command, std::vector<std::string> environment) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_system_error("pipe", errno);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), 2);
  pid_t pid = -1;
  const int result = ::posix_spawn(&pid, command.front().c_str(), &actions, nullptr,
                                   pointers_to(command).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (result != 0) throw_system_error("starting " + command.front(), result);
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(reader)};
}

}  // namespace

struct RankProcesses::Server {
  explicit Server(int world_size)
      : control(server_options(world_size)), thread([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            pollfd waiting{control.epoll_fd(), POLLIN, 0};
            if (::poll(&waiting, 1, 20) > 0) control.process();
          }
        }) {}

  ControlServer control;
  std::jthread thread;
};

RankProcesses::RankProcesses(int world_size, const std::string& scenario,
                             std::vector<std::string> args, std::vector<int> absent)
    : server_(std::make_unique<Server>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    texts_.emplace_back();
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) {
      pids_.push_back(-1);
      outputs_.emplace_back();
      continue;
    }
    std::vector<std::string> command{CONVOY_COMM_WORKER, scenario};
    command.insert(command.end(), args.begin(), args.end());
    auto [pid, output] =
        spawn(std::move(command), environment_of(rank, world_size, server_->control.address()));
    pids_.push_back(pid);
    outputs_.push_back(std::move(output));
  }
}

RankProcesses::~RankProcesses() {
  for (const auto pid : pids_) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

void RankProcesses::signal(int rank, int number) const { ::kill(pid(rank), number); }

void RankProcesses::read_some(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  std::array<char, 4096> buffer;
  for (;;) {
    const auto count = ::read(outputs_[index].get(), buffer.data(), buffer.size());
    if (count <= 0) return;
    texts_[index].append(buffer.data(), static_cast<std::size_t>(count));
  }
}

bool RankProcesses::wait_for_output(int rank, const std::string& text,
                                    std::chrono::seconds longest) {
  const auto deadline = Deadline::after(longest);
  const auto index = static_cast<std::size_t>(rank);
  for (;;) {
    read_some(rank);
    if (texts_[index].find(text) != std::string::npos) return true;
    pollfd waiting{outputs_[index].get(), POLLIN, 0};
    ::poll(&waiting, 1, 50);
    if (deadline.expired() || (waiting.revents & POLLIN) == 0) {
      if (deadline.expired() || (waiting.revents & POLLHUP) != 0) return false;
    }
  }
}

RankResult RankProcesses::finish(int rank, std::chrono::seconds longest) {
  const auto deadline = Deadline::after(longest);
  auto& pid = pids_[static_cast<std::size_t>(rank)];
  CONVOY_CHECK(pid > 0, "rank ", rank, " was not started, or has been waited for");
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    read_some(rank);
    if (deadline.expired()) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  read_some(rank);
  pid = -1;
  RankResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.output = texts_[static_cast<std::size_t>(rank)];
  return result;
}

std::vector<RankResult> RankProcesses::finish_all(std::chrono::seconds longest) {
  std::vector<RankResult> results;
  for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) {
    results.push_back(pid(rank) > 0 ? finish(rank, longest) : RankResult{});
  }
  return results;
}

}  // namespace convoy::test
