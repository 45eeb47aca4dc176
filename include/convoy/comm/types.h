// Small value types of the communicator: reduce operations, options and counters.
#pragma once

#include "convoy/base/trace.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// How values of the ranks are combined, always in rank order 0..N-1. Float16 and bfloat16 are
/// summed in float32 and rounded once. kAvg divides the finished sum once by the group size
/// (floating point types only).
enum class ReduceOp { kSum, kAvg, kMin, kMax };

enum class OpKind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier, kAllocate };

std::string_view to_string(ReduceOp op) noexcept;
/// "all_reduce", "reduce_scatter", ...: the names used in errors, traces and counters.
std::string_view to_string(OpKind kind) noexcept;

/// Options of one call.
struct OpOptions {
  /// Name of the bucket, unit or call site. Compared between ranks and quoted in errors and traces.
  std::string tag = {};
  /// Time limit of this call; the communicator's when absent.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

/// Options of a communicator; must be the same on all ranks.
struct CommunicatorOptions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
  /// A warning names who is awaited after this long.
  std::chrono::nanoseconds warn_after = std::chrono::seconds(10);
  /// Most bytes of shared memory that the ranks of the group may take together, for places that
  /// count it against a container; without it, what the machine and its cgroups have is the limit.
  std::optional<std::int64_t> shared_memory_limit = {};
  /// Part of store keys and messages. Two communicators of one job need different names.
  std::string name = "world";
  /// Spans of operations and waits go here; null records nothing. May differ between ranks.
  std::shared_ptr<trace::Sink> trace = {};
};

/// What one kind of operation has cost this rank so far.
struct OpStats {
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;  ///< Bytes of the caller's tensors (the result's size).
  std::uint64_t copied_bytes = 0;   ///< Bytes this rank's processor moved (stores) to do it.
  std::uint64_t wire_bytes = 0;     ///< Bytes sent over a network.
  double wait_s = 0;                ///< Time callers were blocked in it.
};

using CommStats = std::map<OpKind, OpStats>;

}  // namespace convoy
