// One collective operation in flight, as plain state; progress.cpp moves it on.
#pragma once

#include "comm/host/arena.h"
#include "comm/host/control_page.h"
#include "comm/host/stage_plan.h"
#include "convoy/comm/communicator.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace convoy {

/// Where an operation stands.
enum class OpState {
  kQueued,   ///< Started by the caller; the ring of headers had no room yet.
  kEntered,  ///< Its header is published.
  kMatched,  ///< All ranks have entered it and mean the same.
  kMoved,    ///< This rank has done its part; peers may still use its buffers.
  kDone,     ///< The result is here, and the buffers are the caller's again.
  kFailed,   ///< The group failed before it was done.
};

/// How its bytes travel: decided from all headers alike on every rank.
enum class OpRoute {
  kUnknown,
  kNothing,  ///< No bytes: barrier, empty tensors.
  kDirect,   ///< Peers read (and all_reduce writes) the buffers where they lie in the arena.
  kStaged,   ///< Through the ranks' stages, chunk by chunk.
  kAllocate,
};

/// Its owner's lock guards everything here but `context` and `header`, which do not change.
struct Operation {
  OpContext context;
  OpHeader header;
  ReduceOp reduce = ReduceOp::kSum;
  at::Tensor input = {};                 ///< What peers read; undefined where there is nothing.
  std::vector<at::Tensor> outputs = {};  ///< One; all_gather: one for each rank; barrier: none.
  OwnValues own = {};                    ///< What this rank reads instead of its input.
  std::int64_t largest_part = 0;         ///< all_gather: bytes of the largest input of any rank.

  OpState state = OpState::kQueued;
  OpRoute route = OpRoute::kUnknown;
  StagePlan stage = {};
  std::int64_t filled_chunks = 0;
  std::int64_t used_chunks = 0;
  std::optional<ArenaPlan> arena_plan = {};  ///< allocate.
  std::optional<Error> error = {};           ///< Of this operation alone: allocate.
  std::uint64_t copied_bytes = 0;

  /// Changes the state. Error: kInternal for a step that does not exist.
  void enter(OpState to);
  bool is_over() const noexcept { return state == OpState::kDone || state == OpState::kFailed; }

  OpKind kind() const noexcept { return context.kind; }
  std::uint64_t sequence() const noexcept { return context.sequence; }
  at::ScalarType dtype() const noexcept { return static_cast<at::ScalarType>(header.dtype); }
  std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(c10::elementSize(dtype()));
  }
  /// Lets go of the caller's tensors.
  void release();
  /// The caller's bytes: of the result.
  std::int64_t payload_bytes() const;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace convoy
