// The table of environment variables, its page, and what is made of the values.
#include "convoy/base/env.h"

#include "core/support.h"
#include "rendezvous/launch_environment.h"
#include "support/catch.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>

using namespace convoy;
using namespace convoy::test;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return read_environment([&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

const Variables kComplete{{"RANK", "2"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "2"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"CONVOY_CONTROL", "unix:@x"},
                          {"CONVOY_RUN_ID", "run"},
                          {"CONVOY_GENERATION", "3"}};

Variables changed(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("docs/env.md is the table") {
  std::ifstream file(CONVOY_SOURCE_DIR "/docs/env.md");
  std::stringstream text;
  text << file.rdbuf();
  CHECK(text.str() == env_page());
}

TEST_CASE("Names in the table are different, and only they can be read") {
  std::set<std::string_view> names;
  for (const auto& variable : env_variables()) CHECK(names.insert(variable.name).second);
  CHECK(error_of([] { env_value("HOME"); }).kind() == ErrorKind::kInternal);
}

TEST_CASE("Values are parsed, and what is malformed is listed") {
  const auto env = environment({{"CONVOY_LOG", "debug"}, {"CONVOY_TIMEOUT", "500ms"}});
  CHECK(env.problems.empty());
  CHECK(env.log_level == LogLevel::kDebug);
  CHECK(env.keeps_freed_memory);
  CHECK_FALSE(environment({{"CONVOY_ALLOCATOR", "system"}}).keeps_freed_memory);
  CHECK(environment({{"CONVOY_ALLOCATOR", "jemalloc"}}).problems.size() == 1);
  CHECK(env.timeout == 500ms);

  const auto bad = environment({{"RANK", "x"},
                                {"WORLD_SIZE", "0"},
                                {"CONVOY_LOG", "loud"},
                                {"CONVOY_TIMEOUT", "0"},
                                {"LOCAL_RANK", ""}});
  REQUIRE(bad.problems.size() == 4);
  CHECK(bad.problems[0] == "RANK is 'x', it takes a whole number from 0");
  CHECK(bad.problems[1] == "WORLD_SIZE is '0', it takes a whole number from 1");
  CHECK(contains(bad.problems[2], "CONVOY_TIMEOUT is '0'"));
  CHECK(contains(bad.problems[3], "CONVOY_LOG is 'loud'"));
  CHECK_FALSE(bad.local_rank.has_value());
}

TEST_CASE("Without launch variables there is no launch") {
  CHECK_FALSE(launch_environment(environment({})).has_value());
  CHECK_FALSE(launch_environment(environment({{"MASTER_ADDR", "bad"}, {"OMP_NUM_THREADS", "1"}})));
}

TEST_CASE("A complete launch environment is taken as it is") {
  const auto launch = launch_environment(environment(kComplete));
  REQUIRE(launch.has_value());
  CHECK(launch->info.rank == 2);
  CHECK(launch->info.world_size == 4);
  CHECK(launch->control.rank == 2);
  CHECK(launch->control.world_size == 4);
  CHECK(launch->control.address == "unix:@x");
  CHECK(launch->control.run_id == "run");
  CHECK(launch->control.generation == 3);
}

TEST_CASE("C058: half-set launch variables give one error that lists what is missing") {
  const auto error = error_of([] { launch_environment(environment({{"RANK", "0"}})); });
  CHECK(error.kind() == ErrorKind::kInvalidArgument);
  CHECK(std::string(error.what()) ==
        "the environment describes a job only in part: WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "CONVOY_CONTROL, CONVOY_RUN_ID, CONVOY_GENERATION are missing beside RANK; start the ranks "
        "with convoyrun, or unset it to run as one rank");
  for (const auto& [name, value] : kComplete) {
    auto variables = kComplete;
    variables.erase(name);
    const std::string text = error_of([&] { launch_environment(environment(variables)); }).what();
    CHECK(contains(text, name + " is missing beside"));
  }
}

TEST_CASE("Launch variables that contradict each other or are malformed are named") {
  const auto text = [](const Variables& variables) {
    return std::string(error_of([&] { launch_environment(environment(variables)); }).what());
  };
  CHECK(contains(text(changed(kComplete, "RANK", "4")), "RANK is 4 in a WORLD_SIZE of 4"));
  CHECK(contains(text(changed(kComplete, "LOCAL_RANK", "9")), "LOCAL_RANK is 9"));
  CHECK(contains(text(changed(kComplete, "LOCAL_WORLD_SIZE", "5")), "above the WORLD_SIZE of 4"));
  auto two = changed(kComplete, "RANK", "-1");
  two["CONVOY_GENERATION"] = "first";
  CHECK(contains(text(two), "RANK is '-1'"));
  CHECK(contains(text(two), "CONVOY_GENERATION is 'first'"));
}
