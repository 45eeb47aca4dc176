// Compares the ranks' models before anything else is communicated.
#pragma once

#include "convoy/comm/communicator.h"

#include <string>
#include <vector>

namespace convoy::ddp {

/// What must be equal on all ranks, in order: options, parameters, buffers.
struct ModelEntry {
  std::string kind;  ///< "option", "parameter" or "buffer".
  std::string name;
  std::string text;  ///< The rest, for a person to read: "[100, 500] float32".
};

/// The first difference between rank 0's entries and another rank's, as an error text that names
/// both ranks and both entries; empty if all are equal. Pure. `by_rank` holds each rank's entries.
std::string describe_difference(const std::vector<std::vector<ModelEntry>>& by_rank);

/// Collective. Throws kMismatch with one text on all ranks if their entries differ.
void require_same_model(Communicator& comm, const std::vector<ModelEntry>& entries);

}  // namespace convoy::ddp
