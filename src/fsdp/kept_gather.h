// Gathers the parameters of a unit that stay in float32 while the others are gathered in less.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// For private memory: they are few and small (norms), so they are packed, gathered beside the rest
/// of the unit and copied to their places, where whole slices would undo what a lower precision
/// saves. Thread rule: the thread that runs forward or backward.
class KeptGather {
 public:
  /// Collective. `kept` says for every parameter of `layout` whether it is one of them.
  KeptGather(Communicator& comm, const FlatLayout& layout, const std::vector<bool>& kept,
             at::ScalarType dtype, const std::string& tag);

  /// Starts to gather from this rank's `shard`. Collective.
  WorkPtr begin(Communicator& comm, const at::Tensor& shard, const std::string& tag);
  /// After the work is done: puts the values at their places in `full`.
  void finish(const at::Tensor& full);

 private:
  struct Copy {
    std::int64_t packed = 0;  ///< In the packed values of the rank it comes from.
    std::int64_t flat = 0;    ///< In the full buffer.
    std::int64_t numel = 0;
  };

  int rank_;
  std::int64_t slice_numel_;
  std::int64_t packed_numel_ = 0;          ///< Of the rank that has most.
  std::vector<std::vector<Copy>> copies_;  ///< By rank.
  at::Tensor packed_;
  at::Tensor received_;  ///< While a gather is on its way.
};

}  // namespace convoy::fsdp
