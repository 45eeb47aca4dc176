// Makes the environment of each rank. Pure: from the launcher's environment to a rank's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::launcher {

/// An environment as execve() takes it: "NAME=value" strings.
class EnvironmentBlock {
 public:
  /// From a null-terminated array such as main()'s third argument.
  static EnvironmentBlock copy_of(const char* const* environment);

  std::optional<std::string> find(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  void unset(std::string_view name);
  /// A null-terminated array that refers to this object.
  std::vector<char*> pointers();

 private:
  std::vector<std::string> entries_;
};

/// What the ranks of one job have in common.
struct JobVariables {
  std::string run_id;
  std::string control_address;
  int world_size = 1;
  int master_port = 0;
  std::string omp_num_threads;  ///< Empty: leave what is there.
};

/// The environment of local rank `local_rank`: `inherited`, with torchrun's names and Convoy's own
/// replaced. The launcher's values win, so that nothing left over from an outer job is obeyed.
EnvironmentBlock rank_environment(const EnvironmentBlock& inherited, const JobVariables& job,
                                  int local_rank);

}  // namespace convoy::launcher
