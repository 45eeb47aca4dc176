// Runs that end well: exit code, environment, threads, ports, the report.
#include "launcher/launched.h"
#include "support/catch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace convoy::testing;
using Catch::Matchers::Contains;

namespace {

// A TCP socket bound to 127.0.0.1:port (0: a free one), or an empty Fd.
convoy::Fd bind_tcp(int port, bool reuse_address) {
  convoy::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse_address ? 1 : 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  return socket;
}

int port_of(const convoy::Fd& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

int first_usable_core() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) return core;
  }
  return -1;
}

}  // namespace

TEST_CASE("ranks join the control channel, meet in the store, and the job ends with 0") {
  for (const auto* count : {"1", "2", "3", "5"}) {
    INFO(count);
    Launched run(with_worker({"-q", "-n", count}, {"join", "barrier:a", "barrier:b", "out:done"}));
    CHECK(run.wait() == 0);
    CHECK(lines_of(run.out()).size() == static_cast<std::size_t>(std::stoi(count)));
    CHECK(run.err().empty());
  }
}

TEST_CASE("a clean end with ranks that are slower, twenty times over: always 0, no error text") {
  for (int i = 0; i < 20; ++i) {
    const auto slow = std::to_string(i % 4);
    Launched run(with_worker({"-q", "-n", "4"},
                             {"join", "barrier:a", slow + "@sleep:" + std::to_string(13 * i) + "ms",
                              slow == "3" ? "0@leave" : "1@sleep:5ms"}));
    CHECK(run.wait() == 0);
    CHECK(run.err().empty());
  }
}

TEST_CASE("the environment has torchrun's names") {
  Launched run({"-q", "-n", "2", "/usr/bin/env"});
  REQUIRE(run.wait() == 0);
  const auto out = run.out();
  for (const auto* entry :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=1", "ROLE_NAME=default", "ROLE_RANK=1", "ROLE_WORLD_SIZE=2",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=", "TORCHELASTIC_RUN_ID=", "TORCHELASTIC_RESTART_COUNT=0",
        "TORCHELASTIC_MAX_RESTARTS=0", "TORCHELASTIC_USE_AGENT_STORE=False",
        "CONVOY_CONTROL=unix:@convoy-", "CONVOY_RUN_ID=", "CONVOY_GENERATION=0"}) {
    INFO(entry);
    CHECK_THAT(out, Contains(std::string("[1] ") + entry));
  }
}

TEST_CASE("C058: OMP_NUM_THREADS is the rank's share of the cores unless it is set, said once") {
  const auto cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  Launched unset(with_worker({"-n", "2"}, {"env:OMP_NUM_THREADS"}),
                 {.environment = {{"OMP_NUM_THREADS", std::nullopt}}});
  REQUIRE(unset.wait() == 0);
  const auto share = std::to_string(std::max(1L, cores / 2));
  CHECK_THAT(unset.out(), Contains("[0] OMP_NUM_THREADS=" + share));
  CHECK_THAT(unset.out(), Contains("[1] OMP_NUM_THREADS=" + share));
  const auto err = unset.err();
  CHECK(err.find("OMP_NUM_THREADS") != std::string::npos);
  CHECK(err.find("OMP_NUM_THREADS") == err.rfind("OMP_NUM_THREADS"));

  Launched given(with_worker({"-n", "2"}, {"env:OMP_NUM_THREADS"}),
                 {.environment = {{"OMP_NUM_THREADS", "3"}}});
  REQUIRE(given.wait() == 0);
  CHECK_THAT(given.out(), Contains("[1] OMP_NUM_THREADS=3"));
  CHECK_THAT(given.err(), !Contains("OMP_NUM_THREADS"));

  Launched quiet(with_worker({"-q"}, {"out:x"}));
  REQUIRE(quiet.wait() == 0);
  CHECK(quiet.err().empty());
}

TEST_CASE("C058: values of an outer job are not obeyed") {
  Launched run(with_worker({"-q", "-n", "2"}, {"env:RANK", "env:WORLD_SIZE", "env:MASTER_ADDR",
                                               "env:CONVOY_CONTROL", "join", "barrier:x"}),
               {.environment = {{"RANK", "7"},
                                {"WORLD_SIZE", "8"},
                                {"MASTER_ADDR", "bad"},
                                {"CONVOY_CONTROL", "unix:@stale"},
                                {"CONVOY_GENERATION", "4"}}});
  REQUIRE(run.wait() == 0);
  const auto out = run.out();
  CHECK_THAT(out, Contains("[1] RANK=1"));
  CHECK_THAT(out, Contains("[0] WORLD_SIZE=2"));
  CHECK_THAT(out, !Contains("bad"));
  CHECK_THAT(out, !Contains("stale"));
}

TEST_CASE("C062: auto counts the cores of the affinity mask, and says so") {
  Launched run(with_worker({"-n", "auto"}, {"cores"}), {.cores = {first_usable_core()}});
  REQUIRE(run.wait() == 0);
  CHECK(lines_of(run.out()).size() == 1);
  CHECK_THAT(run.err(), Contains("1 rank (auto: 1 usable core)"));
}

TEST_CASE("Option --bind-to core puts each rank on one core, none leaves the mask alone") {
  Launched bound(with_worker({"-q", "-n", "3", "--bind-to", "core"}, {"cores"}));
  REQUIRE(bound.wait() == 0);
  for (const auto& line : lines_of(bound.out())) {
    // "[R] cores C"
    CHECK(std::count(line.begin(), line.end(), ' ') == 2);
  }
  const auto core = first_usable_core();
  CHECK_THAT(bound.out(), Contains("[0] cores " + std::to_string(core)));
  Launched free(with_worker({"-q", "--bind-to", "none"}, {"cores"}));
  REQUIRE(free.wait() == 0);
  const auto out = free.out();
  CHECK(std::count(out.begin(), out.end(), ' ') == 1 + ::sysconf(_SC_NPROCESSORS_ONLN));
}

TEST_CASE("C048: eight jobs at once have eight ports and all finish") {
  std::vector<std::unique_ptr<Launched>> runs;
  for (int i = 0; i < 8; ++i) {
    runs.push_back(std::make_unique<Launched>(
        with_worker({"-q", "--standalone", "-n", "2"},
                    {"env:MASTER_PORT", "join", "barrier:a", "sleep:300ms"})));
  }
  std::set<std::string> ports;
  for (auto& run : runs) {
    CHECK(run->wait() == 0);
    ports.insert(lines_of(run->out()).at(0).substr(4));
  }
  CHECK(ports.size() == 8);
}

TEST_CASE("C048: a port that is taken is one line with address and port") {
  const auto taken = bind_tcp(0, false);
  const auto port = std::to_string(port_of(taken));
  Launched run(with_worker({"--master-port", port, "-n", "2"}, {"out:x"}));
  CHECK(run.wait(Seconds(5)) == 1);
  CHECK(run.out().empty());
  REQUIRE(lines_of(run.err()).size() == 1);
  CHECK_THAT(run.err(), Contains("127.0.0.1:" + port));
}

TEST_CASE("MASTER_PORT is kept for the job: a rank can listen on it, no other job gets it") {
  Launched run(with_worker({"-q"}, {"env:MASTER_PORT", "sleep:20"}));
  run.wait_for_out("\n");
  const int port = std::stoi(run.out().substr(run.out().find('=') + 1));
  CHECK_FALSE(bind_tcp(port, false));
  const auto store = bind_tcp(port, true);
  REQUIRE(store);
  CHECK(::listen(store.get(), 1) == 0);
  Launched second(with_worker({"--master-port", std::to_string(port)}, {"out:x"}));
  CHECK(second.wait() == 1);
}

TEST_CASE("the report of a good run is there, whole, with every rank") {
  const TemporaryFolder folder;
  Launched run(with_worker({"-n", "3", "--report", folder.path("r.json")}, {"sleep:20ms"}));
  REQUIRE(run.wait() == 0);
  const auto report = nlohmann::json::parse(read_file(folder.path("r.json")));
  CHECK(report["schema"] == 1);
  CHECK(report["exit_code"] == 0);
  CHECK(report["world"] == 3);
  CHECK(report["first_failure"].is_null());
  CHECK(report["argv"][0].get<std::string>().ends_with("convoyrun"));
  CHECK(report["argv"][1] == "-n");
  CHECK(report["run_id"].get<std::string>().size() > 10);
  CHECK(report["seconds"].get<double>() > 0.01);
  REQUIRE(report["ranks"].size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& entry = report["ranks"][static_cast<std::size_t>(rank)];
    CHECK(entry["rank"] == rank);
    CHECK(entry["exit_code"] == 0);
    CHECK(entry["signal"].is_null());
    CHECK(entry["pid"].get<int>() > 1);
    CHECK(entry["max_rss"].get<std::int64_t>() > 100000);
    CHECK(entry["consequence"] == false);
  }
  // By rename: nothing else is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a report that cannot be written is known before the job starts") {
  Launched run(with_worker({"--report", "/nowhere/r.json"}, {"out:started"}));
  CHECK(run.wait() == 1);
  CHECK(run.out().empty());
  CHECK_THAT(run.err(), Contains("/nowhere/r.json"));
}
