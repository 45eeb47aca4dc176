// Sets the variables that tell a rank its place.
#include "programs/convoyrun/rank_environment.h"

#include "convoy/base/check.h"
#include "programs/convoyrun/master_port.h"

#include <algorithm>

namespace convoy::launcher {

namespace {

bool names(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
}

}  // namespace

EnvironmentBlock EnvironmentBlock::copy_of(const char* const* environment) {
  EnvironmentBlock block;
  for (; *environment != nullptr; ++environment) block.entries_.emplace_back(*environment);
  return block;
}

std::optional<std::string> EnvironmentBlock::find(std::string_view name) const {
  for (const auto& entry : entries_) {
    if (names(entry, name)) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

void EnvironmentBlock::set(std::string_view name, std::string_view value) {
  unset(name);
  entries_.push_back(concat(name, "=", value));
}

void EnvironmentBlock::unset(std::string_view name) {
  std::erase_if(entries_, [&](const std::string& entry) { return names(entry, name); });
}

std::vector<char*> EnvironmentBlock::pointers() {
  std::vector<char*> pointers;
  for (auto& entry : entries_) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  return pointers;
}

EnvironmentBlock rank_environment(const EnvironmentBlock& inherited, const JobVariables& job,
                                  int local_rank) {
  const auto rank = std::to_string(local_rank);
  const auto world = std::to_string(job.world_size);
  EnvironmentBlock block = inherited;

  block.set("RANK", rank);
  block.set("WORLD_SIZE", world);
  block.set("LOCAL_RANK", rank);
  block.set("LOCAL_WORLD_SIZE", world);
  block.set("CONVOY_CONTROL", job.control_address);
  block.set("CONVOY_RUN_ID", job.run_id);
  block.set("CONVOY_GENERATION", "0");

  block.set("GROUP_RANK", "0");
  block.set("GROUP_WORLD_SIZE", "1");
  block.set("ROLE_NAME", "default");
  block.set("ROLE_RANK", rank);
  block.set("ROLE_WORLD_SIZE", world);
  block.set("MASTER_ADDR", kMasterAddress);
  block.set("MASTER_PORT", std::to_string(job.master_port));
  block.set("TORCHELASTIC_RUN_ID", job.run_id);
  block.set("TORCHELASTIC_RESTART_COUNT", "0");
  block.set("TORCHELASTIC_MAX_RESTARTS", "0");
  // Nothing listens at MASTER_PORT until rank 0 opens its own store there.
  block.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  block.set("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  // An outer torchrun's file is not for these ranks.
  block.unset("TORCHELASTIC_ERROR_FILE");
  if (!job.omp_num_threads.empty()) block.set("OMP_NUM_THREADS", job.omp_num_threads);
  return block;
}

}  // namespace convoy::launcher
