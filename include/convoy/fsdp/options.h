// Options of FullyShardedDataParallel.
#pragma once

#include "convoy/fsdp/policy.h"

namespace convoy::fsdp {

/// Must be the same on all ranks (checked).
struct Options {
  /// Which units are sharded on their own; the root unit takes the other parameters.
  WrapPolicy wrap = wrap_every_unit();
  /// Gives a unit's full parameters up after its forward and gathers them again for backward. The
  /// root keeps its own until then. False trades memory for gathers. No effect with shared_gather,
  /// where full parameters cost nothing.
  bool reshard_after_forward = true;
  /// One copy of the parameters for all ranks of a machine, in shared memory: a gather moves
  /// nothing. Used where all ranks share memory; elsewhere, and when false, every rank gathers into
  /// memory of its own.
  bool shared_gather = true;
};

}  // namespace convoy::fsdp

namespace convoy {
using FsdpOptions = fsdp::Options;
}  // namespace convoy
