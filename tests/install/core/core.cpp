// Greets the next rank through the job's store: a program that needs no libtorch.
#include <convoy/rendezvous/guarded_main.h>
#include <convoy/rendezvous/job.h>
#include <convoy/version.h>

#include <cstdio>
#include <string>

static int greet(int, char**) {
  const auto job = convoy::Job::from_environment();
  const int next = (job.rank() + 1) % job.world_size();
  const auto deadline = convoy::Deadline::after(std::chrono::seconds(30));
  job.store()->set("name " + std::to_string(job.rank()), std::to_string(job.rank()));
  const std::string other = job.store()->get("name " + std::to_string(next), deadline);
  std::printf("rank %d of %d says hello to %s (Convoy %s)\n", job.rank(), job.world_size(),
              other.c_str(), std::string(convoy::build_info().version).c_str());
  return 0;
}

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, greet); }
