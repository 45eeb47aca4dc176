// Which units give their full parameters up between forward and backward.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <utility>

namespace convoy::fsdp {

/// All units, none, or those a function or a pattern says. A value; the root always keeps its own.
class ReshardAfterForward {
 public:
  /// Implicit, so that `.reshard_after_forward = false` can be written. A template, so that no
  /// pointer, and so no lambda, turns into a bool.
  template <std::same_as<bool> All>
  ReshardAfterForward(All all) : all_(all) {}  // NOLINT(google-explicit-constructor)
  /// Asked for every unit by its name, for a group of blocks by the name of its first.
  explicit ReshardAfterForward(std::function<bool(const std::string& unit)> reshards)
      : reshards_(std::move(reshards)) {}
  /// See keep_after_forward.
  static ReshardAfterForward keeping(std::string pattern);

  /// The pattern that must match some unit; empty if there is none.
  const std::string& kept_pattern() const noexcept { return kept_pattern_; }
  bool operator()(const std::string& unit) const { return reshards_ ? reshards_(unit) : all_; }

 private:
  bool all_ = true;
  std::function<bool(const std::string& unit)> reshards_;
  std::string kept_pattern_;
};

/// All units but those whose name matches `pattern` (see wrap_units_named): `keep_after_forward(
/// "blocks.11")` keeps the last block, which backward needs first. Errors: kInvalidArgument for an
/// empty pattern, and at wrapping for one that matches no unit.
inline ReshardAfterForward keep_after_forward(std::string pattern) {
  return ReshardAfterForward::keeping(std::move(pattern));
}

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::keep_after_forward;
using fsdp::ReshardAfterForward;
}  // namespace convoy
