// Moves the bytes of matched operations: directly between buffers in the arena, or over the stages.
#pragma once

#include "comm/host/arena.h"
#include "comm/host/host_group.h"
#include "comm/host/operation.h"
#include "comm/host/reduce_kernels.h"

namespace convoy {

/// The bytes of a contiguous tensor.
inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}
/// Copies unless the two are the same place, and counts it in the operation.
void copy_counted(Operation& op, std::byte* target, const std::byte* source, std::int64_t bytes,
                  StoreMode store);

/// How the bytes of an operation travel, or kUnknown while that depends on peers that have not
/// entered it. `is_matched`: all headers are there. The same answer on all ranks.
OpRoute choose_route(const HostGroup& group, const Operation& op, bool is_matched);

/// The elements that this rank combines in a reduction of `count` elements. In all_reduce slices
/// begin at cache lines of the buffer, so that no two ranks write one line.
ElementRange slice_of(OpKind kind, std::int64_t count, std::int64_t element_bytes, int rank,
                      int size);

/// Puts own values into the input, for a way that reads them there.
void put_own_values_in(Operation& op);

/// The cut of a staged operation.
StagePlan plan_stage_of(const HostGroup& group, const Operation& op);

/// Does this rank's part of a matched operation whose buffers lie in the arena.
/// Note [Direct moves do not collide]: in all_reduce rank r reads slice r of every buffer and
/// writes slice r of every buffer, and nobody else touches those; in the others each rank writes
/// only its own outputs and reads only inputs. So slice r of rank r's own buffer is read by rank r
/// alone, and its values may lie elsewhere (OwnValues).
void move_direct(const HostGroup& group, const Arena& arena, Operation& op);

/// Puts this rank's bytes of a chunk on its stage.
void fill_stage(const HostGroup& group, Operation& op, std::int64_t chunk, StageRange range);
/// Makes this rank's results of a chunk from all stages.
void use_stage(const HostGroup& group, Operation& op, std::int64_t chunk, StageRange range);

}  // namespace convoy
