// Descriptors, parsing, suggestions, hashes, processes and the logger.
#include "base/regular_file.h"
#include "convoy/base/exception_text.h"
#include "convoy/base/hash.h"
#include "convoy/base/log.h"
#include "convoy/base/parse.h"
#include "convoy/base/process.h"
#include "convoy/base/random_id.h"
#include "convoy/base/standard_streams.h"
#include "convoy/base/suggest.h"
#include "core/support.h"
#include "support/catch.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;

namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

struct Pipe {
  Fd read, write;
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

// Runs `body` in a forked child and returns its exit code: for limits that must not stick to the
// test.
template <typename Body>
int in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = body();
    } catch (...) {  // It must not reach the test runner of which this process is a copy.
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("Fd closes what it owns, once") {
  int raw = -1;
  {
    Fd a(::open("/dev/null", O_RDONLY));
    raw = a.get();
    Fd b = std::move(a);
    a = Fd();  // Closes nothing: it owns nothing any more.
    CHECK(is_open(raw));
    CHECK(b.get() == raw);
    const Fd copy = b.duplicate();
    CHECK(copy.get() != raw);
    CHECK((::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC) != 0);
    b = Fd();
    CHECK_FALSE(is_open(raw));
    CHECK(is_open(copy.get()));
    raw = copy.get();
  }
  CHECK_FALSE(is_open(raw));
  CHECK(error_of([] { Fd().duplicate(); }).kind() == ErrorKind::kSystem);
}

TEST_CASE("A memory file has its size, reserved and sealed") {
  const auto file = make_memory_file("test", 12345);
  struct stat status {};
  REQUIRE(::fstat(file.get(), &status) == 0);
  CHECK(status.st_size == 12345);
  CHECK(status.st_blocks * 512 >= 12345);
  CHECK(::ftruncate(file.get(), 100) != 0);
  CHECK(::ftruncate(file.get(), 100000) != 0);
  CHECK(static_cast<bool>(make_memory_file("empty", 0)));
}

TEST_CASE("A memory file beyond RLIMIT_FSIZE is an error, not SIGXFSZ") {
  const int code = in_child([] {
    const rlimit limit{1 << 16, 1 << 16};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    const auto error = error_of([] { make_memory_file("big", 1 << 20); });
    if (error.kind() != ErrorKind::kMemory) return 11;
    if (!contains(error.what(), "1048576 bytes")) return 12;
    sigset_t pending;
    sigpending(&pending);
    if (sigismember(&pending, SIGXFSZ)) return 13;
    return make_memory_file("small", 1 << 16) ? 0 : 14;
  });
  CHECK(code == 0);
}

TEST_CASE("parse_int takes whole decimal numbers within limits, and nothing else") {
  CHECK(parse_int("0") == 0);
  CHECK(parse_int("-17") == -17);
  CHECK(parse_int("9223372036854775807") == INT64_MAX);
  CHECK(parse_int("5", 5, 5) == 5);
  for (const char* bad :
       {"", " 3", "3 ", "3x", "+3", "0x10", "1e3", "--1", "9223372036854775808"}) {
    INFO(bad);
    CHECK_FALSE(parse_int(bad).has_value());
  }
  CHECK_FALSE(parse_int("4", 5, 9).has_value());
  CHECK_FALSE(parse_int("10", 5, 9).has_value());
}

TEST_CASE("parse_double takes finite numbers") {
  CHECK(parse_double("0.25") == 0.25);
  CHECK(parse_double("-3e-4") == -3e-4);
  for (const char* bad : {"", "x", "1.5.2", "inf", "nan", "1e999", "2 "}) {
    INFO(bad);
    CHECK_FALSE(parse_double(bad).has_value());
  }
}

TEST_CASE("parse_duration knows units, and format_duration is its inverse") {
  CHECK(parse_duration("30") == 30s);
  CHECK(parse_duration("30s") == 30s);
  CHECK(parse_duration("500ms") == 500ms);
  CHECK(parse_duration("2m") == 2min);
  CHECK(parse_duration("1.5h") == 90min);
  CHECK(parse_duration("0") == 0s);
  CHECK(parse_duration("0.5") == 500ms);
  for (const char* bad : {"", "s", "-1", "1 s", "1x", "1.2.3s", "99999999999h", "1e3"}) {
    INFO(bad);
    CHECK_FALSE(parse_duration(bad).has_value());
  }
  CHECK(format_duration(30s) == "30s");
  CHECK(format_duration(500ms) == "500ms");
  CHECK(format_duration(600s) == "10m");
  CHECK(format_duration(0s) == "0s");
  for (const std::int64_t count :
       {1L, 999L, 1'000L, 1'500'000L, 60'000'000'000L, 86'400'000'000'001L}) {
    const std::chrono::nanoseconds duration(count);
    CHECK(parse_duration(format_duration(duration)) == duration);
  }
}

TEST_CASE("edit_distance counts slips") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("teh", "the") == 1);
  CHECK(edit_distance("ca", "abc") == 3);
  CHECK(edit_distance("abc", "abc") == 0);
}

TEST_CASE("nearest_name finds the name that was meant") {
  const std::vector<std::string> names{"nproc-per-node", "log-dir", "tee", "strategy", "steps"};
  CHECK(nearest_name("nproc_per_node", names) == "nproc-per-node");
  CHECK(nearest_name("stratgy", names) == "strategy");
  CHECK(nearest_name("Setps", names) == "steps");
  CHECK(nearest_name("nproc", names) == "nproc-per-node");
  CHECK_FALSE(nearest_name("completely-else", names).has_value());
  CHECK_FALSE(nearest_name("x", std::vector<std::string>{}).has_value());
  CHECK(did_you_mean("logdir", names) == "; did you mean 'log-dir'?");
  CHECK(did_you_mean("zzz", names).empty());
}

TEST_CASE("hash64 is XXH3-64, in one piece or many") {
  CHECK(hash64("") == 0x2D06800538D394C2ULL);  // From the specification of xxHash.
  std::string text(100'003, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 131 + i / 251);
  for (const std::size_t piece : {1u, 7u, 64u, 4099u, 100'003u}) {
    Hasher64 hasher;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hasher.update(std::string_view(text).substr(at, piece));
    }
    CHECK(hasher.digest() == hash64(text));
  }
  CHECK(hash64("a") != hash64("b"));
}

TEST_CASE("Processes are seen with their state and their end") {
  const auto self = read_process_status(::getpid());
  REQUIRE(self.has_value());
  CHECK(self->parent == ::getppid());
  CHECK(self->start_ticks > 0);

  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  const auto pidfd = open_pidfd(pid);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  CHECK(eventually([&] { return read_process_status(pid)->is_stopped(); }));
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(eventually([&] { return read_process_status(pid)->is_ended(); }));
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  CHECK_FALSE(read_process_status(pid).has_value());
  CHECK(error_of([&] { open_pidfd(pid); }).kind() == ErrorKind::kSystem);
}

TEST_CASE("exception_text is one line, without libtorch's stack traces") {
  const auto text = [](const char* what) { return exception_text(std::runtime_error(what)); };
  CHECK(text("plain") == "plain");
  CHECK(text("two\nlines\r\n\n") == "two lines ");
  CHECK(
      text("shapes differ\nException raised from f at x.cpp:3 (most recent call first):\nframe #0: "
           "f + 0x1\n") == "shapes differ");
  CHECK(
      text(
          "[enforce fail at alloc_cpu.cpp:127] err == 0. Cannot allocate memory\nframe #0: f + 0x1 "
          "(0x7f in libc10.so)\nframe #1: g\n") ==
      "[enforce fail at alloc_cpu.cpp:127] err == 0. Cannot allocate memory");
  CHECK(text("").empty());
}

TEST_CASE("Standard streams that are closed are held by /dev/null, the others stay") {
  const Fd input(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10));
  ::close(STDIN_FILENO);
  hold_standard_streams();
  struct stat info {};
  const int result = ::fstat(STDIN_FILENO, &info);
  const bool has_output = is_open(STDOUT_FILENO) && is_open(STDERR_FILENO);
  ::dup2(input.get(), STDIN_FILENO);
  CHECK(result == 0);
  CHECK(S_ISCHR(info.st_mode));
  CHECK(has_output);
}

TEST_CASE("A limit of descriptors is named with what raises it") {
  CHECK_THROWS_WITH(throw_system_error("opening it", EMFILE),
                    "opening it: Too many open files (raise the limit: ulimit -n)");
  CHECK_THROWS_WITH(throw_system_error("opening it", ENOENT),
                    "opening it: No such file or directory");
}

TEST_CASE("random_id gives different names") {
  const auto a = random_id("x");
  CHECK(a.size() == 34);
  CHECK(a.starts_with("x-"));
  CHECK(a != random_id("x"));
}

TEST_CASE("The logger writes whole prefixed lines from its level on") {
  Pipe pipe;
  const Logger logger({.level = LogLevel::kInfo, .rank = 3, .fd = pipe.write.get()});
  logger.error("bad ", 7);
  logger.info("two\nlines");
  logger.debug("not seen");
  CHECK(read_all(pipe.read.get()) ==
        "convoy [rank 3] error: bad 7\nconvoy [rank 3] info: two lines\n");
  const Logger no_rank({.fd = pipe.write.get()});
  no_rank.warn("x");
  no_rank.info("below the default level");
  CHECK(read_all(pipe.read.get()) == "convoy warn: x\n");
}

TEST_CASE("The logger limits its rate and says what it left out") {
  Pipe pipe;
  const Logger logger({.fd = pipe.write.get(), .max_lines_a_second = 5});
  const auto began = Deadline::Clock::now();
  for (int i = 0; i < 100; ++i) logger.warn("line ", i);
  if (Deadline::Clock::now() - began > 900ms)
    return;  // Too slow a machine for this to mean anything.
  const auto burst = read_all(pipe.read.get());
  CHECK(std::count(burst.begin(), burst.end(), '\n') <= 10);
  CHECK(std::count(burst.begin(), burst.end(), '\n') >= 5);
  std::this_thread::sleep_for(1050ms);
  logger.warn("later");
  CHECK(contains(read_all(pipe.read.get()), "lines left out before this)"));
}

TEST_CASE("A logger whose descriptor is gone does no harm") {
  const Logger logger({.fd = -1});
  logger.error("into the void");
  SUCCEED();
}

TEST_CASE("Log levels have names") {
  for (const auto level : {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    CHECK(parse_log_level(to_string(level)) == level);
  }
  CHECK_FALSE(parse_log_level("loud").has_value());
}

TEST_CASE("a file is read to its end, or as far as wanted, however little a read gives") {
  // The kernel gives this one a page at a time.
  const Fd file(::open("/proc/self/smaps", O_RDONLY | O_CLOEXEC));
  std::string buffer(std::size_t{1} << 20, '\0');
  const ssize_t once = ::read(file.get(), buffer.data(), buffer.size());
  REQUIRE(once > 0);
  const auto whole = read_regular_file("/proc/self/smaps", buffer.size());
  CHECK(whole.problem.empty());
  CHECK(whole.text.size() > static_cast<std::size_t>(once));
  CHECK(read_regular_file("/proc/self/smaps", 10000).text.size() == 10000);
  CHECK(read_regular_file("/proc/self/nothing", 10).problem == "No such file or directory");
  CHECK(read_regular_file("/proc/self", 10).problem == "it is a folder");
}
