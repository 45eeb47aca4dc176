// The launcher's stand-in, and child processes.
#include "core/support.h"

#include "convoy/base/env.h"
#include "convoy/base/process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace convoy::test {

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = Deadline::after(10s);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

ServerThread::ServerThread(int world_size, ControlServerOptions options)
    : options_(std::move(options)), wake_(make_event_fd()) {
  options_.world_size = world_size;
  if (options_.run_id.empty()) options_.run_id = "test-run";
  ControlServerEvents events;
  events.on_hello = [this](int rank, pid_t) { note(concat("hello ", rank)); };
  events.on_departure = [this](int rank, Departure how) {
    const char* word = how == Departure::kFinished    ? "finished "
                       : how == Departure::kUnwinding ? "unwinding "
                                                      : "vanished ";
    note(concat(word, rank));
  };
  events.on_report = [this](const FailureReport& report) {
    note(concat("report ", report.reporter, ": ", report.text));
  };
  events.on_refused = [this](const std::string& reason) { note("refused: " + reason); };
  server_ = std::make_unique<ControlServer>(options_, std::move(events));
  address_ = server_->address();
  thread_ = std::thread([this] { serve(); });
}

ServerThread::~ServerThread() { stop(); }

void ServerThread::serve() {
  while (!is_stopping_) {
    pollfd entries[2] = {{server_->epoll_fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(entries, 2, -1);
    const std::lock_guard lock(mutex_);
    server_->process();
  }
}

void ServerThread::run(const std::function<void(ControlServer&)>& act) {
  const std::lock_guard lock(mutex_);
  act(*server_);
}

void ServerThread::stop() {
  if (!thread_.joinable()) return;
  is_stopping_ = true;
  const std::uint64_t one = 1;
  check(::write(wake_.get(), &one, sizeof(one)) == sizeof(one), "waking the server's thread");
  thread_.join();
  server_.reset();
}

ControlClientOptions ServerThread::client(int rank) const {
  ControlClientOptions options;
  options.address = address_;
  options.rank = rank;
  options.world_size = options_.world_size;
  options.run_id = options_.run_id;
  options.generation = options_.generation;
  options.connect_timeout = 5s;
  options.answer_timeout = 5s;
  return options;
}

void ServerThread::note(std::string event) {
  const std::lock_guard lock(events_mutex_);
  events_.push_back(std::move(event));
}

std::vector<std::string> ServerThread::events() const {
  const std::lock_guard lock(events_mutex_);
  return events_;
}

bool ServerThread::has_event(std::string_view beginning) const {
  const auto all = events();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& event) { return event.starts_with(beginning); });
}

Child Child::start(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment) {
  std::vector<std::string> words{CONVOY_CORE_WORKER};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const auto name = text.substr(0, text.find('='));
    const auto known = env_variables();
    const bool is_ours =
        std::any_of(known.begin(), known.end(), [&](const auto& v) { return v.name == name; });
    if (!is_ours) variables.push_back(text);
  }
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    list.reserve(texts.size() + 1);
    for (auto& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  // A memory file takes any amount of output without a reader.
  Fd out(::memfd_create("output", MFD_CLOEXEC));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, out.get(), 2);
  pid_t pid = 0;
  const int result = ::posix_spawn(&pid, CONVOY_CORE_WORKER, &actions, nullptr,
                                   pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (result != 0) throw_system_error("starting " CONVOY_CORE_WORKER, result);
  return Child(pid, std::move(out));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), out_(std::move(other.out_)), code_(other.code_) {}

Child::~Child() {
  if (pid_ <= 0 || code_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::kill(int signal) const { check(::kill(pid_, signal) == 0, "sending a signal"); }

int Child::wait() {
  if (code_) return *code_;
  const auto pidfd = open_pidfd(pid_);
  pollfd entry{pidfd.get(), POLLIN, 0};
  if (::poll(&entry, 1, 30'000) != 1) throw std::runtime_error("a child did not end in 30 s");
  int status = 0;
  ::waitpid(pid_, &status, 0);
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return *code_;
}

std::string Child::output() {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::pread(out_.get(), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) >
         0) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

std::vector<std::string> launch_variables(const ServerThread& server, int rank) {
  const auto options = server.client(rank);
  return {concat("RANK=", rank),
          concat("WORLD_SIZE=", options.world_size),
          concat("LOCAL_RANK=", rank),
          concat("LOCAL_WORLD_SIZE=", options.world_size),
          concat("CONVOY_CONTROL=", options.address),
          concat("CONVOY_RUN_ID=", options.run_id),
          concat("CONVOY_GENERATION=", options.generation)};
}

}  // namespace convoy::test
