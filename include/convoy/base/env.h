// Every environment variable that Convoy reads or sets: one table, and the only place that reads
// them.
#pragma once

#include "convoy/base/log.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// Who a variable is for.
enum class EnvGroup {
  kUser,      ///< A person sets it to change what Convoy does.
  kLaunch,    ///< convoyrun sets it for its ranks, and the library reads it.
  kForeign,   ///< convoyrun sets it for its ranks as torchrun does; the library does not read it.
  kBorrowed,  ///< Belongs to others; Convoy looks at it.
  kBuild,     ///< Read by scripts/setup and CMake; programs do not read it.
};

/// One row of the table.
struct EnvVariable {
  std::string_view name;
  EnvGroup group;
  std::string_view fallback;  ///< What holds when it is not set.
  std::string_view meaning;
};

/// The table, ordered by group. docs/env.md is made from it.
std::span<const EnvVariable> env_variables() noexcept;

/// The table as the Markdown page docs/env.md.
std::string env_page();

/// The value of a variable of the table in this process. Empty counts as not set.
/// Error: kInternal for a name that is not in the table.
std::optional<std::string> env_value(std::string_view name);

/// What the environment says, read once and then handed on as a value.
struct Environment {
  std::optional<int> rank;                          ///< RANK
  std::optional<int> world_size;                    ///< WORLD_SIZE
  std::optional<int> local_rank;                    ///< LOCAL_RANK
  std::optional<int> local_world_size;              ///< LOCAL_WORLD_SIZE
  std::optional<std::string> control;               ///< CONVOY_CONTROL
  std::optional<std::string> run_id;                ///< CONVOY_RUN_ID
  std::optional<std::int64_t> generation;           ///< CONVOY_GENERATION
  std::optional<std::chrono::nanoseconds> timeout;  ///< CONVOY_TIMEOUT
  LogLevel log_level = LogLevel::kWarn;             ///< CONVOY_LOG
  bool keeps_freed_memory = true;                   ///< CONVOY_ALLOCATOR
  /// One sentence for each variable that is set to something it cannot be.
  std::vector<std::string> problems;
};

/// Looks a name up; nothing when it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// The environment of this process, or what `lookup` gives. Never throws for a malformed value:
/// that becomes a problem, and the field stays empty.
Environment read_environment();
Environment read_environment(const EnvLookup& lookup);

}  // namespace convoy
