// Signals to the launcher: passed on, waited for, and enforced.
#include "launcher/launched.h"
#include "support/catch.h"

#include <nlohmann/json.hpp>

#include <string>

#include <signal.h>

using namespace convoy::testing;
using Catch::Matchers::Contains;

TEST_CASE("told to stop: 128 + signal, and no rank is called a failure") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    INFO(signal);
    const TemporaryFolder folder;
    Launched run(with_worker({"-n", "2", "--report", folder.path("r.json")}, {"pid", "sleep:60"}));
    run.wait_for_out("pid", 2);
    run.signal(signal);
    CHECK(run.wait(Seconds(6)) == 128 + signal);
    CHECK_THAT(run.err(), !Contains("first failure"));
    const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
    CHECK(report["exit_code"] == 128 + signal);
    CHECK(report["first_failure"].is_null());
  }
}

TEST_CASE("a background job of a shell, which has SIGINT ignored, can be interrupted") {
  Launched run(with_worker({"-q", "-n", "2"}, {"pid", "sleep:60"}), {.ignored_signal = SIGINT});
  run.wait_for_out("pid", 2);
  run.signal(SIGINT);
  CHECK(run.wait(Seconds(6)) == 128 + SIGINT);
}

TEST_CASE("nohup: an ignored SIGHUP stays ignored") {
  Launched run(with_worker({"-q"}, {"pid", "sleep:1"}), {.ignored_signal = SIGHUP});
  run.wait_for_out("pid");
  run.signal(SIGHUP);
  CHECK(run.wait() == 0);
}

TEST_CASE("C049: with enough grace a rank saves its file, and the launcher ends with 143") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-n", "2", "--shutdown-timeout", "20"},
                           {"save:" + folder.path("file") + ":1500ms"}));
  run.wait_for_out("ready", 2);
  run.signal(SIGTERM);
  CHECK(run.wait() == 143);
  for (const auto* rank : {"0", "1"}) {
    CHECK(read_file(folder.path("file") + rank) == "first half,second half");
  }
  CHECK_THAT(run.err(), !Contains("killed"));
}

TEST_CASE("C049: with too little grace a rank is killed, a line says so, still 143") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-q", "-n", "2", "--shutdown-timeout", "500ms"},
                           {"save:" + folder.path("file") + ":30"}));
  run.wait_for_out("ready", 2);
  run.signal(SIGTERM);
  CHECK(run.wait(Seconds(10)) == 143);
  CHECK(run.duration().count() < 15);
  CHECK(read_file(folder.path("file0")) == "first half,");
  CHECK_THAT(run.err(), Contains("ranks 0 and 1 did not end within 0.500 s of SIGTERM: killed"));
}

TEST_CASE("C049: SIGUSR1 and SIGUSR2 reach every rank, and the job goes on") {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const auto number = std::to_string(signal);
    Launched run(with_worker({"-q", "-n", "2"},
                             {"count:" + number, "out:ready", "await:" + number, "out:after"}));
    run.wait_for_out("ready", 2);
    run.signal(signal);
    CHECK(run.wait() == 0);
    const auto out = run.out();
    for (const auto* rank : {"[0] ", "[1] "}) {
      CHECK_THAT(out, Contains(rank + ("took " + number)));
      CHECK_THAT(out, Contains(std::string(rank) + "after"));
    }
  }
}

TEST_CASE("a second signal kills at once") {
  for (const int signal : {SIGINT, SIGTERM}) {
    Launched run(with_worker({"-n", "3"}, {"ignore:2", "ignore:15", "out:ready", "sleep:60"}));
    run.wait_for_out("ready", 3);
    run.signal(signal);
    run.wait_for_err("passed on");
    const auto begin = std::chrono::steady_clock::now();
    run.signal(signal);
    CHECK(run.wait(Seconds(5)) == 128 + signal);
    // Half a second on a quiet machine.
    CHECK(Seconds(std::chrono::steady_clock::now() - begin).count() < 2.5);
    CHECK_THAT(run.err(), Contains("killing what is left"));
  }
}

TEST_CASE("ranks that ended with 0 when told to stop: still 143") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-q", "-n", "2"}, {"save:" + folder.path("f") + ":1ms"}));
  run.wait_for_out("ready", 2);
  run.signal(SIGTERM);
  CHECK(run.wait() == 143);
}

TEST_CASE("a stopped rank gets SIGCONT with the signal to stop, and obeys it") {
  Launched run(with_worker({"-q", "-n", "2"}, {"pid", "sleep:60"}));
  run.wait_for_out("pid", 2);
  ::kill(number_after(run.out(), "pid"), SIGSTOP);
  run.signal(SIGTERM);
  CHECK(run.wait(Seconds(6)) == 143);
}

TEST_CASE("Option --shutdown-timeout bounds the end after a failure too") {
  Launched run(with_worker({"-n", "2", "--shutdown-timeout", "400ms"},
                           {"ignore:15", "out:ready", "0@sleep:300ms", "0@exit:4", "sleep:60"}));
  CHECK(run.wait(Seconds(15)) == 4);
  CHECK_THAT(run.err(), Contains("rank 1 did not end within"));
  CHECK_THAT(run.err(), Contains("first failure: rank 0"));
  CHECK_THAT(run.err(), Contains("signal SIGKILL"));
}
