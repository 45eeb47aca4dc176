// Saves and loads the parameters of a model by spans, in whole tensors, in any strategy.
#pragma once

#include "convoy/checkpoint/safetensors.h"
#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"

#include <filesystem>
#include <span>

namespace convoy::saving {

/// Writes every span's whole tensor under its name to the safetensors file `path`, by rank 0, as
/// the pieces come in: no rank holds more than a few MiB beyond its own. Not atomic: write into a
/// StagedFolder. Collective over `comm` (null: one process), with the same spans on all ranks.
/// Errors, the same on all ranks: kInvalidArgument (pieces that do not make up a tensor, a dtype
/// that safetensors lacks), kMismatch (other spans), kSystem (rank 0 cannot write).
void save_model(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                Communicator* comm, const Metadata& metadata = {});

/// Sets every span's leaf from the file `path`, which rank 0 alone reads, piece by piece. FSDP's
/// leaves may be written before the first forward and inside edit(). Collective as save_model.
/// Errors, the same on all ranks: kInvalidArgument, before anything is changed, naming the file and
/// the tensor that is missing, not in the model, or of another shape or dtype; kSystem when reading
/// fails, and kInvalidArgument for Bools that are none: the values are then undefined.
void load_model(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                Communicator* comm);

}  // namespace convoy::saving
