// Options of FullyShardedDataParallel.
#pragma once

#include "convoy/fsdp/mixed_precision.h"
#include "convoy/fsdp/parameter_filter.h"
#include "convoy/fsdp/policy.h"
#include "convoy/fsdp/reshard_after_forward.h"

namespace convoy::fsdp {

/// Must be the same on all ranks (checked).
struct Options {
  /// Which units are sharded on their own; the root unit takes the other parameters.
  WrapPolicy wrap = wrap_every_unit();
  /// Gives a unit's full parameters up after its forward and gathers them again for backward. The
  /// root keeps its own until then. False trades memory for gathers, for all units or for some (see
  /// keep_after_forward). No effect with shared_gather, where full parameters cost nothing.
  ReshardAfterForward reshard_after_forward = true;
  /// One copy of the parameters for all ranks of a machine, in shared memory: a gather moves
  /// nothing. Used where all ranks share memory; elsewhere, and when false, every rank gathers into
  /// memory of its own.
  bool shared_gather = true;
  /// Computes in a lower precision than the parameters' (off by default).
  MixedPrecision mixed_precision = {};
  /// Parameters that stay as they are: whole on every rank, with the values and the gradients of
  /// that rank. Neither compared nor broadcast nor reduced nor clipped; full_state_dict gives rank
  /// 0's values. An optimizer made of the model's parameters steps them, each rank by itself.
  ParameterFilter ignored = {};
};

}  // namespace convoy::fsdp

namespace convoy {
using FsdpOptions = fsdp::Options;
}  // namespace convoy
