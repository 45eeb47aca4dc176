// The whole tensors of a state, and streaming them through rank 0.
#pragma once

#include "checkpoint/span_exchange.h"
#include "checkpoint/state_streams.h"
#include "convoy/checkpoint/first_rank.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace convoy::saving {

/// One tensor of a state: cut like a span, or the same number on all ranks.
struct StateItem {
  TensorInfo info;                  ///< Name, dtype and whole sizes.
  std::optional<std::size_t> span;  ///< Absent: all of it is in `piece`.
  at::Tensor piece;                 ///< This rank's part.
};

/// A tensor cut like a span of `exchange`, of its leaf's dtype.
StateItem item_like_span(const SpanExchange& exchange, std::size_t span, std::string name,
                         const at::Tensor& piece);

/// Sends all items in file order to what `open` makes on rank 0. Collective; what goes wrong on
/// rank 0 is kept in `first`.
void send_items(const std::vector<StateItem>& items, const SpanExchange& exchange, FirstRank& first,
                const std::function<StateSink*(std::vector<TensorInfo> tensors)>& open);

/// Sends all items to a new safetensors file on rank 0, and ends it. Collective; throws rank 0's
/// error on all ranks.
void save_items(const std::vector<StateItem>& items, const SpanExchange& exchange,
                Communicator* comm, const std::filesystem::path& path, const Metadata& metadata);

/// Fills the pieces of all items from rank 0's `source`. Collective.
void receive_items(const std::vector<StateItem>& items, const SpanExchange& exchange,
                   FirstRank& first, const StateSource* source);

/// What is wrong with the tensor `wanted` in a source. Error: kInvalidArgument naming it.
void require_like(const StateSource& source, const TensorInfo& wanted);
/// Error: kInvalidArgument naming the first tensor of the source that `is_known` does not take.
void require_all_known(const StateSource& source,
                       const std::function<bool(const std::string&)>& is_known, const char* where);

}  // namespace convoy::saving
