// The job page: what a rank writes is what others read, whole, whenever the writer stops.
#include "convoy/control/job_page.h"

#include "convoy/base/trace.h"
#include "core/support.h"
#include "support/catch.h"

#include <csignal>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;

TEST_CASE("A new page says that nobody is there") {
  const auto page = JobPage::create(3);
  for (int rank = 0; rank < 3; ++rank) {
    const auto mark = page.read(rank);
    CHECK(mark.phase == RankPhase::kAbsent);
    CHECK(mark.pid == 0);
    CHECK(mark.progress == 0);
    CHECK(describe_operation(mark) == "none");
  }
}

TEST_CASE("Marks are read through another mapping, cut to their size") {
  auto page = JobPage::create(2);
  auto other = JobPage::attach(Fd(::dup(page.fd())), 2);
  const auto before = trace::now_ns();
  other.write(1, RankPhase::kRunning, "all_reduce", 51, "layer3");
  auto mark = page.read(1);
  CHECK(mark.phase == RankPhase::kRunning);
  CHECK(mark.pid == ::getpid());
  CHECK(describe_operation(mark) == "all_reduce #51 'layer3'");
  CHECK(mark.since_ns >= before);
  CHECK(mark.progress == 1);
  other.write(1, RankPhase::kRunning, std::string(100, 'o'), 52, std::string(100, 't'));
  mark = page.read(1);
  CHECK(mark.operation == std::string(31, 'o'));
  CHECK(mark.tag == std::string(63, 't'));
  CHECK(mark.progress == 2);
  other.write(1, RankPhase::kLeft, "", 0, "");
  CHECK(page.read(1).phase == RankPhase::kLeft);
  CHECK(page.read(0).phase == RankPhase::kAbsent);
  other.write(7, RankPhase::kRunning, "ignored", 1, "");  // Outside of the world: nothing happens.
}

TEST_CASE("A page that is too small or can shrink is refused") {
  CHECK(error_of([] { JobPage::attach(make_memory_file("small", 64), 1000); }).kind() ==
        ErrorKind::kProtocol);
  Fd loose(::memfd_create("loose", MFD_CLOEXEC));
  REQUIRE(::ftruncate(loose.get(), 1 << 20) == 0);
  CHECK(error_of([&] { JobPage::attach(std::move(loose), 2); }).kind() == ErrorKind::kProtocol);
  CHECK(error_of([] { JobPage::attach(Fd(), 2); }).kind() == ErrorKind::kProtocol);
}

TEST_CASE("A reader never sees half of a mark") {
  auto page = JobPage::create(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      const std::string text(1 + i % 30, static_cast<char>('a' + i % 26));
      page.write(0, RankPhase::kRunning, text, i, text);
      // A pause now and then, because a writer that never pauses may overtake every reading.
      if (i % 8 == 0) std::this_thread::yield();
    }
  });
  // Reads until many different marks have been seen.
  int seen = 0;
  std::uint64_t last = 0;
  const auto deadline = Deadline::after(20s);
  while (seen < 200 && !deadline.expired()) {
    const auto mark = page.read(0);
    if (mark.sequence == last) continue;
    last = mark.sequence;
    ++seen;
    const std::string text(1 + mark.sequence % 30, static_cast<char>('a' + mark.sequence % 26));
    if (mark.operation != text || mark.tag != text) {
      stop = true;
      writer.join();
      FAIL("sequence " << mark.sequence << " with " << mark.operation << " and " << mark.tag);
    }
  }
  stop = true;
  writer.join();
  CHECK(seen >= 20);  // On a loaded machine only a switch of threads brings a new mark.
}

TEST_CASE("A mark is whole after the SIGKILL of its writer") {
  for (int round = 0; round < 20; ++round) {
    auto page = JobPage::create(1);
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (std::uint64_t i = 1;; ++i) {
        page.write(0, RankPhase::kRunning, std::string(1 + i % 30, 'x'), i, "");
      }
    }
    while (page.read(0).progress < 100) {
    }
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    const auto mark = page.read(0);
    CHECK(mark.operation == std::string(1 + mark.sequence % 30, 'x'));
    CHECK(mark.sequence == mark.progress);
    CHECK(mark.pid == pid);
  }
}
