// Which cores the job may use, and which of them each rank gets.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace convoy::launcher {

/// Cores of this process's affinity mask, in order. Error: kSystem.
std::vector<int> usable_cores();

enum class BindTo {
  kNone,  ///< Ranks may run on all usable cores.
  kCore,  ///< Rank r runs on usable core r modulo their number.
};

/// The core for a rank, or nothing where ranks are not bound.
std::optional<int> core_for_rank(BindTo bind_to, const std::vector<int>& cores, int local_rank);

/// Threads that a rank gets when the user has not said: an equal part of the cores, and one where
/// each rank is bound to one core.
int threads_per_rank(BindTo bind_to, int cores, int ranks);

}  // namespace convoy::launcher
