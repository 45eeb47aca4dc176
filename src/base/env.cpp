// The table of environment variables, and the only getenv of the project.
#include "convoy/base/env.h"

#include "convoy/base/check.h"
#include "convoy/base/parse.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

namespace convoy {
namespace {

constexpr auto kUser = EnvGroup::kUser;
constexpr auto kLaunch = EnvGroup::kLaunch;
constexpr auto kForeign = EnvGroup::kForeign;
constexpr auto kBorrowed = EnvGroup::kBorrowed;
constexpr auto kBuild = EnvGroup::kBuild;

constexpr std::array kVariables{
    EnvVariable{
        "CONVOY_ALLOCATOR", kUser, "keep",
        "`keep`: programs over `guarded_main` let malloc keep large blocks that were freed, "
        "for the next step, and ask for huge pages under its heap. `system`: malloc stays as the "
        "C library has it."},
    EnvVariable{"CONVOY_LOG", kUser, "warn",
                "How much is logged to stderr: `error`, `warn`, `info` or `debug`."},
    EnvVariable{"CONVOY_TIMEOUT", kUser, "600s",
                "Time limit of collectives and of rendezvous where the program leaves it at its "
                "default: `30`, `30s`, `500ms`, `10m`. Dead and stopped ranks are found much "
                "earlier without it."},

    EnvVariable{"RANK", kLaunch, "a job of one rank", "Number of this rank in the job, from 0."},
    EnvVariable{"WORLD_SIZE", kLaunch, "1", "Ranks of the job."},
    EnvVariable{"LOCAL_RANK", kLaunch, "0", "Number of this rank on its host, from 0."},
    EnvVariable{"LOCAL_WORLD_SIZE", kLaunch, "1", "Ranks on this host."},
    EnvVariable{
        "CONVOY_CONTROL", kLaunch, "a job of one rank",
        "Address of the control channel: `unix:@name` or `unix:/path`. It carries the store, "
        "who is there, and the first failure."},
    EnvVariable{"CONVOY_RUN_ID", kLaunch, "a random one",
                "Name of the run: the same for all its ranks, different between runs."},
    EnvVariable{"CONVOY_GENERATION", kLaunch, "0",
                "Life of the run, from 0. Part of every key, so that lives cannot meet."},

    EnvVariable{"MASTER_ADDR", kForeign, "", "`127.0.0.1`: the ranks are on one host."},
    EnvVariable{
        "MASTER_PORT", kForeign, "",
        "A port that is held free for the life of the job, for programs that open a TCP store "
        "of their own."},
    EnvVariable{"GROUP_RANK", kForeign, "", "Number of this host: `0`."},
    EnvVariable{"GROUP_WORLD_SIZE", kForeign, "", "Hosts of the job: `1`."},
    EnvVariable{"ROLE_NAME", kForeign, "", "`default`."},
    EnvVariable{"ROLE_RANK", kForeign, "", "As `RANK`."},
    EnvVariable{"ROLE_WORLD_SIZE", kForeign, "", "As `WORLD_SIZE`."},
    EnvVariable{"TORCHELASTIC_RUN_ID", kForeign, "", "As `CONVOY_RUN_ID`."},
    EnvVariable{"TORCHELASTIC_RESTART_COUNT", kForeign, "", "As `CONVOY_GENERATION`."},
    EnvVariable{"TORCHELASTIC_MAX_RESTARTS", kForeign, "", "`0`."},
    EnvVariable{"TORCHELASTIC_USE_AGENT_STORE", kForeign, "", "`False`: no store is served."},
    EnvVariable{"TORCHELASTIC_SIGNALS_TO_HANDLE", kForeign, "", "`SIGTERM,SIGINT,SIGHUP,SIGQUIT`."},

    EnvVariable{"OMP_NUM_THREADS", kBorrowed, "usable cores / ranks of the host",
                "Threads of a rank. convoyrun sets it when it is not set, and says so once."},
    EnvVariable{"PYTHON_EXEC", kBorrowed, "python3",
                "Interpreter with which convoyrun starts a `*.py` program."},

    EnvVariable{"CONVOY_DEPS", kBuild, "`.deps` in the source tree", "Folder for downloads."},
    EnvVariable{"CONVOY_TORCH", kBuild, "what `scripts/setup` downloads",
                "Folder of a libtorch to build with (holds `include/` and `lib/`)."},
    EnvVariable{"Torch_DIR", kBuild, "as above", "Such a libtorch's `share/cmake/Torch`."},
    EnvVariable{"CMAKE_PREFIX_PATH", kBuild, "as above", "Folders in which a libtorch may be."},
};

std::string_view title(EnvGroup group) {
  switch (group) {
    case kUser: return "For people";
    case kLaunch: return "Set by convoyrun, read by the library";
    case kForeign: return "Set by convoyrun for programs that expect torchrun";
    case kBorrowed: return "Belonging to others";
    case kBuild: return "For setting up and building";
  }
  return "";
}

// Reads fields of an Environment and collects what is wrong with them.
class FieldParser {
 public:
  FieldParser(const EnvLookup& lookup, std::vector<std::string>& problems)
      : lookup_(lookup), problems_(problems) {}

  std::optional<std::string> text(std::string_view name) {
    auto value = lookup_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::optional<std::int64_t> number(std::string_view name, std::int64_t min, std::int64_t max) {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto parsed = parse_int(*value, min, max);
    if (!parsed) {
      complain(name, *value, concat("a whole number from ", min));
    }
    return parsed;
  }

  std::optional<int> small(std::string_view name, int min) {
    const auto parsed = number(name, min, 1 << 20);
    if (!parsed) return std::nullopt;
    return static_cast<int>(*parsed);
  }

  void complain(std::string_view name, std::string_view value, std::string_view wanted) {
    problems_.push_back(concat(name, " is '", value.substr(0, 100), "', it takes ", wanted));
  }

 private:
  const EnvLookup& lookup_;
  std::vector<std::string>& problems_;
};

}  // namespace

std::span<const EnvVariable> env_variables() noexcept { return kVariables; }

std::string env_page() {
  std::string page =
      "# Environment variables\n\n"
      "Made from the table in `src/base/env.cpp`; a test compares the two. No other variable "
      "changes "
      "what Convoy does.\nAn empty value counts as not set.\n";
  auto group = EnvGroup::kBuild;
  for (const auto& variable : kVariables) {
    const bool has_default = variable.group != kForeign;
    if (variable.group != group) {
      group = variable.group;
      page += concat("\n## ", title(group), "\n\n",
                     has_default ? "| variable | when not set | meaning |\n| --- | --- | --- |\n"
                                 : "| variable | value |\n| --- | --- |\n");
    }
    page += concat("| `", variable.name, "` | ");
    if (has_default) page += concat(variable.fallback, " | ");
    page += concat(variable.meaning, " |\n");
  }
  return page;
}

std::optional<std::string> env_value(std::string_view name) {
  const bool is_known = std::any_of(kVariables.begin(), kVariables.end(),
                                    [&](const auto& variable) { return variable.name == name; });
  CONVOY_CHECK(is_known, "environment variable ", name, " is not in the table of base/env.cpp");
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

Environment read_environment() { return read_environment(env_value); }

Environment read_environment(const EnvLookup& lookup) {
  Environment env;
  FieldParser parser(lookup, env.problems);
  env.rank = parser.small("RANK", 0);
  env.world_size = parser.small("WORLD_SIZE", 1);
  env.local_rank = parser.small("LOCAL_RANK", 0);
  env.local_world_size = parser.small("LOCAL_WORLD_SIZE", 1);
  env.control = parser.text("CONVOY_CONTROL");
  env.run_id = parser.text("CONVOY_RUN_ID");
  env.generation = parser.number("CONVOY_GENERATION", 0, std::numeric_limits<std::int64_t>::max());
  if (const auto text = parser.text("CONVOY_TIMEOUT")) {
    env.timeout = parse_duration(*text);
    if (env.timeout && env.timeout->count() == 0) env.timeout.reset();
    if (!env.timeout) {
      parser.complain("CONVOY_TIMEOUT", *text, "a duration above zero such as 30s or 500ms");
    }
  }
  if (const auto text = parser.text("CONVOY_LOG")) {
    const auto level = parse_log_level(*text);
    if (level) env.log_level = *level;
    if (!level) parser.complain("CONVOY_LOG", *text, "error, warn, info or debug");
  }
  if (const auto text = parser.text("CONVOY_ALLOCATOR")) {
    env.keeps_freed_memory = *text != "system";
    if (*text != "system" && *text != "keep") {
      parser.complain("CONVOY_ALLOCATOR", *text, "keep or system");
    }
  }
  return env;
}

}  // namespace convoy
