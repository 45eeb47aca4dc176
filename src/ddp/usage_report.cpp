// Which parameters got no gradient, and the error that says so. Pure: no tensors, no communication.
#include "ddp/usage_report.h"

#include "convoy/base/check.h"

#include <algorithm>

namespace convoy::ddp {

std::string describe_missed(const std::vector<MissedParameter>& missed, int ranks) {
  std::string names;
  for (std::size_t i = 0; i < std::min(missed.size(), kNamedAtMost); ++i) {
    const MissedParameter& parameter = missed[i];
    names += concat(i == 0 ? "" : ", ", parameter.name);
    if (parameter.used_by > 0)
      names += concat(" (used on ", parameter.used_by, " of ", ranks, " ranks)");
  }
  if (missed.size() > kNamedAtMost) names += concat(" and ", missed.size() - kNamedAtMost, " more");
  return concat("DistributedDataParallel: ", missed.size(),
                missed.size() == 1 ? " parameter" : " parameters",
                " got no gradient in this backward: ", names,
                ". If the forward is meant to leave parameters out, set find_unused_parameters = "
                "true; if they never train, call requires_grad_(false) on them before wrapping.");
}

}  // namespace convoy::ddp
