// Starting: programs that cannot be run, interpreters, and what a start costs.
#include "launcher/launched.h"
#include "support/catch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy::testing;
using Catch::Matchers::Contains;

namespace {

void write_file(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
}

// Runs a program that must not start: one line that holds `text`, no output, and soon.
void check_refused(std::vector<std::string> arguments, int code, const std::string& text) {
  INFO(arguments.back());
  Launched run(std::move(arguments));
  CHECK(run.wait(Seconds(2)) == code);
  CHECK(run.out().empty());
  const auto err = run.err();
  CHECK_THAT(err, Contains("cannot run"));
  CHECK_THAT(err, Contains(text));
  CHECK(std::count(err.begin(), err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE("C063: a program that is missing or cannot be run is one line, 127 or 126") {
  const TemporaryFolder folder;
  write_file(folder.path("plain"), "#!/bin/sh\n", 0644);
  write_file(folder.path("junk"),
             "\x7f"
             "ELF but not really",
             0755);
  write_file(folder.path("lost"), "#!/no/such/interpreter\n", 0755);
  check_refused({"-q", "-n", "4", folder.path("none")}, 127, "No such file or directory");
  check_refused({"-q", "-n", "4", folder.path("plain/x")}, 127, "Not a directory");
  check_refused({"-q", "-n", "4", "no-such-program-anywhere"}, 127, "not found in PATH");
  check_refused({"-q", "-n", "4", folder.path()}, 126, "Is a directory");
  check_refused({"-q", "-n", "4", folder.path("plain")}, 126, "Permission denied");
  check_refused({"-q", "-n", "4", folder.path("junk")}, 126, "Exec format error");
  check_refused({"-q", "-n", "4", folder.path("lost")}, 127, "interpreter");
  check_refused({"-q", "-n", "4", folder.path("none.py")}, 127, "No such file or directory");
}

TEST_CASE("usage errors are one line and exit 2") {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"-n", "0", "true"},
                                             {"--nope", "true"},
                                             {"-n"},
                                             {"--tee", "3:1", "-n", "2", "true"}}) {
    Launched run(arguments);
    CHECK(run.wait() == 2);
    CHECK(run.out().empty());
    CHECK_THAT(run.err(), Contains("convoyrun: error: "));
    CHECK(lines_of(run.err()).size() == 1);
  }
}

TEST_CASE("Option --help and --version go to stdout and end with 0") {
  Launched help({"--help"});
  CHECK(help.wait() == 0);
  CHECK_THAT(help.out(), Contains("--shutdown-timeout"));
  Launched version({"--version"});
  CHECK(version.wait() == 0);
  CHECK_THAT(version.out(), Contains("convoyrun "));
}

TEST_CASE("a name is looked up in PATH, arguments reach the program as they are") {
  Launched run({"-q", "-n", "1", "printf", "%s|", "a b", "", "--tee", "*"});
  CHECK(run.wait() == 0);
  CHECK(run.out() == "[0] a b||--tee|*|\n");
}

TEST_CASE("a *.py program runs under the interpreter with -u, unless --no-python") {
  const TemporaryFolder folder;
  // An interpreter that shows how it was called, so that this needs no Python.
  write_file(folder.path("python"), "#!/bin/sh\necho \"interpreter $@\"\n", 0755);
  write_file(folder.path("x.py"), "#!/bin/sh\necho \"program $@\"\n", 0755);
  const LaunchOptions options{.environment = {{"PYTHON_EXEC", folder.path("python")}}};
  Launched with({"-q", folder.path("x.py"), "a"}, options);
  CHECK(with.wait() == 0);
  CHECK(with.out() == "[0] interpreter -u " + folder.path("x.py") + " a\n");
  Launched without({"-q", "--no-python", folder.path("x.py"), "a"}, options);
  CHECK(without.wait() == 0);
  CHECK(without.out() == "[0] program a\n");
}

TEST_CASE("stdin of ranks is empty") {
  Launched run({"-q", "-n", "2", "cat"});
  CHECK(run.wait() == 0);
  CHECK(run.out().empty());
}

TEST_CASE("a rank gets no descriptor of the launcher's") {
  // `ls` lists the folder it has open, too; what this test itself hands down is there both times.
  const auto count = [](const std::string& command) {
    FILE* pipe = ::popen(command.c_str(), "r");
    char text[64] = "";
    const bool has_read = ::fgets(text, sizeof(text), pipe) != nullptr;
    ::pclose(pipe);
    return has_read ? std::atoi(text) : -1;
  };
  const std::string list = "sh -c 'ls /proc/self/fd | wc -l'";
  const int alone = count(list);
  CHECK(alone >= 4);
  CHECK(count(std::string(CONVOYRUN_PATH) + " -q " + list + " | cut -c5-") == alone);
}

TEST_CASE("more ranks than the limit of descriptors allows: one line with the limit, exit 1") {
  Launched run({"-q", "sh", "-c",
                "ulimit -n 40; exec " CONVOYRUN_PATH " -n 30 " LAUNCHER_WORKER_PATH " sleep:30s"});
  CHECK(run.wait(Seconds(20)) == 1);
  CHECK(run.duration() < Seconds(10));
  CHECK_THAT(run.err(), Contains("convoyrun: error: cannot make a pipe"));
  CHECK_THAT(run.err(), Contains("ulimit -n"));
}

TEST_CASE("64 ranks start, meet and end") {
  Launched run(with_worker({"-q", "-n", "64"}, {"join", "barrier:a", "out:here"}));
  CHECK(run.wait(Seconds(60)) == 0);
  CHECK(lines_of(run.out()).size() == 64);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// A number behind "name:" in /proc/<pid>/status.
int status_field(pid_t pid, const std::string& name) {
  const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = status.find("\n" + name + ":");
  return at == std::string::npos ? -1 : std::stoi(status.substr(at + name.size() + 2));
}

}  // namespace

TEST_CASE("a start costs milliseconds of processor time") {
  std::vector<double> cpu;
  std::vector<double> wall;
  for (int i = 0; i < 15; ++i) {
    Launched run({"-q", "-n", "2", "/bin/true"});
    REQUIRE(run.wait() == 0);
    cpu.push_back(run.cpu_time().count());
    wall.push_back(run.duration().count());
  }
  std::sort(cpu.begin(), cpu.end());
  std::sort(wall.begin(), wall.end());
  // 6 ms from start to end where nothing else runs. Wall time on a loaded machine says little, so
  // that limit only catches a wait that does not belong there.
  INFO("processor time: median " << cpu[7] << " s; wall: best " << wall[0] << ", median "
                                 << wall[7]);
  CHECK(cpu[7] < 0.05);
  CHECK(wall[0] < 1);
}

TEST_CASE("a launcher that has nothing to do sleeps, and is small") {
  Launched run({"-q", "-n", "2", "sleep", "20"});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const int before = status_field(run.pid(), "voluntary_ctxt_switches");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const int after = status_field(run.pid(), "voluntary_ctxt_switches");
  // It looks at the state of its ranks twice a second, and at nothing else.
  CHECK(before > 0);
  CHECK(after - before <= 6);
  CHECK(status_field(run.pid(), "Threads") == 1);
  CHECK(status_field(run.pid(), "VmHWM") < 15 * 1024);
}
#endif
