// Which units give their full parameters up between forward and backward.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace convoy::fsdp {

/// All units, none, or those a function or a pattern says. A value; the root always keeps its own.
class ReshardAfterForward {
 public:
  /// Implicit, so that `.reshard_after_forward = false` can be written.
  ReshardAfterForward(bool all) : all_(all) {}  // NOLINT(google-explicit-constructor)
  /// Asked for every unit by its name, for a group of blocks by the name of its first.
  explicit ReshardAfterForward(std::function<bool(const std::string& unit)> reshards)
      : reshards_(std::move(reshards)) {}

  bool operator()(const std::string& unit) const { return reshards_ ? reshards_(unit) : all_; }

 private:
  bool all_ = true;
  std::function<bool(const std::string& unit)> reshards_;
};

/// All units but those whose name matches `pattern` (see wrap_units_named): `keep_after_forward(
/// "blocks.11")` keeps the last block, which backward needs first.
ReshardAfterForward keep_after_forward(std::string pattern);

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::keep_after_forward;
using fsdp::ReshardAfterForward;
}  // namespace convoy
