// Which parameters got no gradient, and the error that says so. Pure: no tensors, no communication.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace convoy::ddp {

/// A parameter that at least one rank missed in a synchronised backward.
struct MissedParameter {
  std::string name;
  int used_by = 0;  ///< Ranks that had a gradient for it.
};

/// The text of the error for find_unused_parameters = false; the same on every rank, because all
/// have the same reduced flags. Names at most kNamedAtMost parameters.
std::string describe_missed(const std::vector<MissedParameter>& missed, int ranks);

inline constexpr std::size_t kNamedAtMost = 20;

}  // namespace convoy::ddp
