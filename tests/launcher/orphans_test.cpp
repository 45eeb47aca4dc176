// Nothing of a job is left, however it ends.
#include "launcher/launched.h"
#include "support/catch.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>

using namespace convoy::testing;

namespace {

// All numbers behind "word " in the text.
std::vector<pid_t> pids_in(const std::string& text, const std::string& word) {
  std::vector<pid_t> pids;
  for (auto at = text.find(word + " "); at != std::string::npos;
       at = text.find(word + " ", at + 1)) {
    pids.push_back(std::stoi(text.substr(at + word.size() + 1)));
  }
  return pids;
}

std::vector<pid_t> all_pids(const std::string& text) {
  std::vector<pid_t> all;
  for (const auto* word : {"pid", "child", "daemon"}) {
    for (const pid_t pid : pids_in(text, word)) all.push_back(pid);
  }
  return all;
}

bool are_gone(const std::vector<pid_t>& pids) {
  return becomes_true([&] { return std::none_of(pids.begin(), pids.end(), is_alive); }, Seconds(5));
}

}  // namespace

TEST_CASE("C047: after SIGKILL of the launcher no rank, no child and no daemon of a rank lives") {
  Launched run(with_worker({"-q", "-n", "4"},
                           {"pid", "1@child:group", "2@child:session", "join", "sleep:60"}));
  run.wait_for_out("pid", 4);
  run.wait_for_out("child", 2);
  run.wait_for_out("daemon");
  const auto pids = all_pids(run.out());
  REQUIRE(pids.size() == 7);
  run.signal(SIGKILL);
  CHECK(run.wait() == 1000 + SIGKILL);
  CHECK(are_gone(pids));
}

TEST_CASE("C047: also ranks that ignore SIGTERM, and a launcher killed in the middle of starting") {
  for (int i = 0; i < 10; ++i) {
    Launched run(with_worker({"-q", "-n", "8"}, {"ignore:15", "pid", "child:group", "sleep:60"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
    run.signal(SIGKILL);
    CHECK(run.wait() == 1000 + SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(are_gone(all_pids(run.out())));
  }
}

TEST_CASE("children that outlive their rank are ended with the job, and do not keep it waiting") {
  for (const auto* how : {"group", "session"}) {
    INFO(how);
    Launched run(with_worker({"-q", "-n", "2"}, {"pid", std::string("child:") + how}));
    CHECK(run.wait(Seconds(10)) == 0);
    const auto pids = all_pids(run.out());
    CHECK(pids.size() >= 4);
    CHECK(are_gone(pids));
    CHECK(run.duration().count() < 5);
  }
}

TEST_CASE("no process of the launcher's own is left either") {
  for (const bool is_killed : {false, true}) {
    Launched run(with_worker({"-q"}, {"pid", is_killed ? "sleep:60" : "out:x"}));
    run.wait_for_out("pid");
    const auto pid = std::to_string(run.pid());
    std::istringstream file(read_file("/proc/" + pid + "/task/" + pid + "/children"));
    const std::vector<pid_t> children{std::istream_iterator<pid_t>(file), {}};
    if (is_killed) {
      REQUIRE(children.size() == 2);  // The guard, then the rank.
      // The guard renames itself once it runs.
      std::string guard;
      for (int i = 0; i < 500 && !guard.starts_with("convoyrun-guard"); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        guard = read_file("/proc/" + std::to_string(children[0]) + "/cmdline");
      }
      CHECK(guard.starts_with("convoyrun-guard"));
      CHECK(guard.find("sleep") == std::string::npos);
    }
    if (is_killed) run.signal(SIGKILL);
    run.wait();
    CHECK(are_gone(children));
  }
}
