// A scope in which parameters of a sharded model are whole, to read and to write.
#pragma once

#include <memory>
#include <string>

namespace convoy::fsdp {

class FullySharded;
class ShardedModel;

/// Must be the same on all ranks.
struct SummonOptions {
  /// Keeps what is written to the parameters: of each element what the rank wrote that owns it, so
  /// all ranks should write the same; with rank0_only what rank 0 wrote. False drops it.
  bool writeback = true;
  /// Only rank 0 gets whole parameters; the others see their shards and must not write.
  bool rank0_only = false;
  /// Names of units as in wrap_units_named; "(root)" is the root, a group of blocks goes by the
  /// name of any of them.
  std::string units = "**";
  /// The units inside of those as well.
  bool recurse = true;
};

/// While it lives, the parameters of the units show their whole values, in their own dtype, in
/// memory of this rank's own that is freed at the end: the size of those units. No forward,
/// backward or optimizer step inside. What was written comes back at the end, as inside edit().
/// Movable, one at a time. If the scope is left by an exception nothing is written back, and with
/// `writeback` the communicator fails on all ranks, because they would wait.
class [[nodiscard]] FullParamsScope {
 public:
  FullParamsScope(std::shared_ptr<ShardedModel> model, const SummonOptions& options);
  /// As close(), but an error fails the communicator, and so the next operation, in place of being
  /// thrown.
  ~FullParamsScope();
  FullParamsScope(FullParamsScope&&) noexcept = default;
  FullParamsScope& operator=(FullParamsScope&&) = delete;
  FullParamsScope(const FullParamsScope&) = delete;
  FullParamsScope& operator=(const FullParamsScope&) = delete;

  /// Ends the scope before the end of its life. Collective with `writeback`. Errors: those of the
  /// communicator.
  void close();

 private:
  std::shared_ptr<ShardedModel> model_;
  int exceptions_;
};

/// Makes parameters whole (PyTorch's summon_full_params). Collective. Errors: kInvalidArgument for
/// units that match nothing; kMisuse inside a forward, a backward or another scope.
FullParamsScope summon_full_params(FullySharded& model, const SummonOptions& options = {});

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::FullParamsScope;
using fsdp::summon_full_params;
using fsdp::SummonOptions;
}  // namespace convoy
