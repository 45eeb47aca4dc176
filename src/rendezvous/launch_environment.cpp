// Checks the launcher's variables as a whole.
#include "rendezvous/launch_environment.h"

#include "convoy/base/check.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {
namespace {

struct Presence {
  std::string_view name;
  bool is_set;
};

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const auto& part : parts) text += text.empty() ? part : concat(separator, part);
  return text;
}

void require_complete(const std::array<Presence, 7>& variables) {
  std::vector<std::string> present;
  std::vector<std::string> missing;
  for (const auto& [name, is_set] : variables) {
    (is_set ? present : missing).emplace_back(name);
  }
  CONVOY_REQUIRE(missing.empty(), kInvalidArgument,
                 "the environment describes a job only in part: ", join(missing, ", "),
                 missing.size() == 1 ? " is" : " are", " missing beside ", join(present, ", "),
                 "; start the ranks with convoyrun, or unset ", present.size() == 1 ? "it" : "them",
                 " to run as one rank");
}

void require_consistent(const RankInfo& info) {
  CONVOY_REQUIRE(info.rank < info.world_size, kInvalidArgument, "RANK is ", info.rank,
                 " in a WORLD_SIZE of ", info.world_size, "; ranks count from 0");
  CONVOY_REQUIRE(info.local_rank < info.local_world_size, kInvalidArgument, "LOCAL_RANK is ",
                 info.local_rank, " in a LOCAL_WORLD_SIZE of ", info.local_world_size,
                 "; ranks count from 0");
  CONVOY_REQUIRE(info.local_world_size <= info.world_size, kInvalidArgument, "LOCAL_WORLD_SIZE is ",
                 info.local_world_size, ", above the WORLD_SIZE of ", info.world_size);
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const Environment& env) {
  CONVOY_REQUIRE(env.problems.empty(), kInvalidArgument, join(env.problems, "; "));
  const std::array<Presence, 7> variables{{{"RANK", env.rank.has_value()},
                                           {"WORLD_SIZE", env.world_size.has_value()},
                                           {"LOCAL_RANK", env.local_rank.has_value()},
                                           {"LOCAL_WORLD_SIZE", env.local_world_size.has_value()},
                                           {"CONVOY_CONTROL", env.control.has_value()},
                                           {"CONVOY_RUN_ID", env.run_id.has_value()},
                                           {"CONVOY_GENERATION", env.generation.has_value()}}};
  bool any = false;
  for (const auto& variable : variables) any = any || variable.is_set;
  if (!any) return std::nullopt;
  require_complete(variables);

  LaunchEnvironment launch;
  launch.info = {*env.rank, *env.world_size, *env.local_rank, *env.local_world_size};
  require_consistent(launch.info);
  launch.control.address = *env.control;
  launch.control.rank = launch.info.rank;
  launch.control.world_size = launch.info.world_size;
  launch.control.run_id = *env.run_id;
  launch.control.generation = *env.generation;
  return launch;
}

}  // namespace convoy
