// What a communicator takes from the environment.
#include "convoy/comm/factory.h"
#include "convoy/rendezvous/job.h"
#include "support/catch.h"

#include <chrono>
#include <cstdlib>

using namespace std::chrono_literals;

TEST_CASE("CONVOY_TIMEOUT is the time limit where the program leaves the default") {
  const auto job = convoy::Job::alone();
  CHECK(convoy::make_communicator(job)->options().timeout == 600s);
  REQUIRE(::setenv("CONVOY_TIMEOUT", "7s", 1) == 0);
  const auto from_environment = convoy::make_communicator(job)->options().timeout;
  const auto from_program = convoy::make_communicator(job, {.timeout = 5s})->options().timeout;
  ::unsetenv("CONVOY_TIMEOUT");
  CHECK(from_environment == 7s);
  CHECK(from_program == 5s);
}
