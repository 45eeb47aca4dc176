// The ranks' output: whole lines, files byte for byte, slow readers.
#include "convoy/control/channel.h"
#include "launcher/launched.h"
#include "support/catch.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy::testing;
using Catch::Matchers::Contains;

namespace {

std::string only_folder_in(const std::string& path) {
  const auto first = std::filesystem::directory_iterator(path);
  return first->path().string();
}

std::string log_file(const std::string& run_folder, int rank, const std::string& stream) {
  return run_folder + "/attempt_0/" + std::to_string(rank) + "/" + stream + ".log";
}

// What the worker writes for pattern:0 plus its lines, as it is said to.
void check_pattern_lines(const std::vector<std::string>& lines, int rank, int count) {
  REQUIRE(lines.size() == static_cast<std::size_t>(count) + 3);
  for (int i = 0; i < count; ++i) {
    const auto& line = lines[static_cast<std::size_t>(i)];
    const auto begin = "rank " + std::to_string(rank) + " line " + std::to_string(i) + " ";
    if (!line.starts_with(begin) || line.size() != 199) FAIL("line " << i << ": " << line);
  }
  const auto& long_line = lines[static_cast<std::size_t>(count)];
  CHECK(long_line.size() == std::size_t{1} << 20);
  CHECK(long_line.find_first_not_of(static_cast<char>('A' + rank)) == std::string::npos);
  CHECK_THAT(lines[static_cast<std::size_t>(count) + 1], Contains("update 19 of"));
  CHECK(lines.back() == "last of " + std::to_string(rank));
}

}  // namespace

TEST_CASE("C059: lines of four ranks are whole and carry their rank, files have the same bytes") {
  constexpr int kLines = 10000;
  const TemporaryFolder folder;
  Launched run(with_worker({"-q", "-n", "4", "--log-dir", folder.path("logs"), "--tee", "1"},
                           {"pattern:" + std::to_string(kLines)}));
  REQUIRE(run.wait(Seconds(60)) == 0);
  std::vector<std::vector<std::string>> by_rank(4);
  for (const auto& line : lines_of(run.out())) {
    REQUIRE(line.size() > 4);
    REQUIRE(line[0] == '[');
    by_rank.at(static_cast<std::size_t>(line[1] - '0')).push_back(line.substr(4));
  }
  const auto run_folder = only_folder_in(folder.path("logs"));
  for (int rank = 0; rank < 4; ++rank) {
    check_pattern_lines(by_rank[static_cast<std::size_t>(rank)], rank, kLines);
    const auto file = read_file(log_file(run_folder, rank, "stdout"));
    check_pattern_lines(lines_of(file), rank, kLines);
    CHECK(file.back() != '\n');
    CHECK(std::count(file.begin(), file.end(), '\r') == 20);
    CHECK_FALSE(std::filesystem::exists(log_file(run_folder, rank, "stderr")));
  }
}

TEST_CASE("Option --tee, --redirects and --log-dir: what is kept and what is shown") {
  const struct {
    std::vector<std::string> flags;
    bool shows_out, shows_err, keeps_out, keeps_err;
  } cases[] = {
      {{}, true, true, true, true},
      {{"--tee", "0"}, true, true, false, false},
      {{"--tee", "1"}, true, true, true, false},
      {{"--tee", "2"}, true, true, false, true},
      {{"--redirects", "1"}, false, true, true, false},
      {{"--redirects", "3"}, false, false, true, true},
      {{"--redirects", "3", "--tee", "2"}, false, true, true, true},
      {{"--redirects", "0:3", "--tee", "0:1"}, true, false, true, true},
      {{"--tee", "1:3"}, true, true, false, false},
  };
  for (const auto& c : cases) {
    const TemporaryFolder folder;
    std::vector<std::string> flags{"-q", "-n", "2", "--log-dir", folder.path("logs")};
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    Launched run(with_worker(flags, {"0@out:to stdout", "0@err:to stderr"}));
    REQUIRE(run.wait() == 0);
    INFO(Catch::StringMaker<std::vector<std::string>>::convert(c.flags));
    CHECK((run.out() == "[0] to stdout\n") == c.shows_out);
    CHECK((run.err() == "[0] to stderr\n") == c.shows_err);
    if (!std::filesystem::exists(folder.path("logs"))) {
      CHECK_FALSE((c.keeps_out || c.keeps_err));
      continue;
    }
    const auto run_folder = only_folder_in(folder.path("logs"));
    CHECK((read_file(log_file(run_folder, 0, "stdout")) == "to stdout\n") == c.keeps_out);
    CHECK((read_file(log_file(run_folder, 0, "stderr")) == "to stderr\n") == c.keeps_err);
  }
}

TEST_CASE("streams kept without --log-dir go to a temporary folder that is named") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-n", "1", "--redirects", "1"}, {"out:kept"}),
               {.environment = {{"TMPDIR", folder.path()}}});
  REQUIRE(run.wait() == 0);
  const auto root = only_folder_in(folder.path());
  CHECK_THAT(run.err(), Contains("logs in " + root));
  CHECK(read_file(log_file(only_folder_in(root), 0, "stdout")) == "kept\n");
}

TEST_CASE("a log folder that cannot be made is one line, and nothing starts") {
  Launched run(with_worker({"-n", "2", "--log-dir", "/proc/nowhere"}, {"out:x"}));
  CHECK(run.wait() == 1);
  CHECK(run.out().empty());
  CHECK_THAT(run.err(), Contains("/proc/nowhere"));
  CHECK(lines_of(run.err()).size() == 1);
}

TEST_CASE("stdout and stderr in one file do not cut into each other") {
  Launched run(with_worker({"-q", "-n", "3"}, {"errs:500", "pattern:200", "errs:500"}),
               {.is_merged = true});
  REQUIRE(run.wait(Seconds(30)) == 0);
  std::size_t err_lines = 0;
  for (const auto& line : lines_of(run.out())) {
    REQUIRE(line[0] == '[');
    if (line.substr(4).starts_with("stderr line ")) ++err_lines;
  }
  CHECK(err_lines == 3000);
}

TEST_CASE("a reader that goes away does not end the job, one that waits loses nothing") {
  // 3 x 2 MB through a pipe whose reader sleeps first: far more than pipe and queue hold.
  const auto command = std::string(CONVOYRUN_PATH) + " -q -n 3 " + worker() + " pattern:10000";
  const auto count = [](const std::string& shell) {
    FILE* pipe = ::popen(shell.c_str(), "r");
    std::array<char, 256> text{};
    const auto size = ::fread(text.data(), 1, text.size(), pipe);
    ::pclose(pipe);
    return std::string(text.data(), size);
  };
  CHECK(count("{ " + command + "; echo rc=$? >&2; } 2>&1 >/dev/null") == "rc=0\n");
  CHECK(count(command + " | { sleep 1; wc -l; }") == "30009\n");
  CHECK(count("{ " + command +
              " 2>/dev/null; echo $? >&2; } 2>&1 | { head -c 1000 >/dev/null; cat "
              ">/dev/null; }") == "");
  CHECK(count("{ { " + command + "; echo $? >&3; } | head -c 1000 >/dev/null; } 3>&1") == "0\n");
}

TEST_CASE("a signal is heard while the reader of the output sleeps") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::execl(CONVOYRUN_PATH, CONVOYRUN_PATH, "-q", "-n", "2", "/usr/bin/yes", nullptr);
    ::_exit(99);
  }
  ::close(ends[1]);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // The pipe is full by now.
  ::kill(pid, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(pid, SIGTERM);  // The ranks are gone; this says that nobody reads any more.
  int status = 0;
  const bool has_ended =
      becomes_true([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, Seconds(5));
  if (!has_ended) ::kill(pid, SIGKILL);
  CHECK(has_ended);
  CHECK(WEXITSTATUS(status) == 143);
  ::close(ends[0]);
}

TEST_CASE("on a terminal updates are one status line, and lines stand above it") {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE((::grantpt(master) == 0 && ::unlockpt(master) == 0));
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(terminal, STDOUT_FILENO);
    ::dup2(terminal, STDERR_FILENO);
    ::close(terminal);
    ::close(master);
    ::execl(CONVOYRUN_PATH, CONVOYRUN_PATH, "-q", "-n", "2", LAUNCHER_WORKER_PATH, "0@part:\r10 %",
            "0@sleep:100ms", "0@part:\r20 %", "1@sleep:250ms", "1@out:from one", "0@sleep:300ms",
            "0@part:\rdone\n", nullptr);
    ::_exit(99);
  }
  ::close(terminal);
  std::string screen;
  std::array<char, 4096> bytes;
  for (ssize_t count; (count = ::read(master, bytes.data(), bytes.size())) > 0;) {
    screen.append(bytes.data(), static_cast<std::size_t>(count));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(master);
  CHECK(status == 0);
  // Drawn, replaced, put aside for a line, drawn again, and replaced by its last state.
  CHECK_THAT(screen, Contains("[0] 10 %"));
  CHECK_THAT(screen, Contains("\r\x1b[K[0] 20 %"));
  CHECK_THAT(screen, Contains("\r\x1b[K[1] from one\r\n[0] 20 %"));
  CHECK(screen.ends_with("\r\x1b[K[0] done\r\n"));
}

TEST_CASE(
    "a launcher that is started without standard streams runs its job, and keeps its files whole") {
  const TemporaryFolder folder;
  Launched run({"-q", "sh", "-c",
                "exec " CONVOYRUN_PATH " -n 2 --log-dir " + folder.path("logs") + " --report " +
                    folder.path("report") +
                    " " LAUNCHER_WORKER_PATH " join out:hello barrier:a <&- >&- 2>&-"});
  CHECK(run.wait() == 0);
  CHECK(run.out().empty());
  CHECK(read_file(folder.path("report")).front() == '{');
  const auto logs = only_folder_in(folder.path("logs"));
  for (const int rank : {0, 1}) CHECK(read_file(log_file(logs, rank, "stdout")) == "hello\n");
}

TEST_CASE("who floods the control channel does not flood the output, and disturbs no rank") {
  Launched run(
      with_worker({"-n", "2"}, {"0@env:CONVOY_CONTROL", "sleep:500ms", "barrier:a", "out:done"}));
  run.wait_for_out("unix:@");
  const std::string line = lines_of(run.out()).front();
  const auto address = convoy::ControlAddress::parse(line.substr(line.find("unix:")));
  for (int i = 0; i < 60; ++i) {
    const auto deadline = convoy::Deadline::after(std::chrono::seconds(5));
    auto stranger = convoy::Channel::connect(address, deadline);
    stranger.send("what is this? not a message", deadline);
  }
  CHECK(run.wait() == 0);
  CHECK_THAT(run.out(), Contains("[0] done") && Contains("[1] done"));
  CHECK_THAT(run.err(), Contains("bytes that are not a Convoy message"));
  const auto lines = lines_of(run.err());
  CHECK(lines.size() == 12);  // The start, ten of them, and that there were more.
  CHECK_THAT(lines.back(), Contains("further refused connections"));
}
