// Whole values of some units in buffers of their own, shown by their leaves for a while.
#pragma once

#include "convoy/comm/communicator.h"
#include "param_group.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace convoy::fsdp {

/// The buffers hold the parameters' own dtype, whatever units compute in, and are no part of what
/// peers read: writes of one rank do not meet those of another. Thread rule: the thread that
/// trains.
class FullValues {
 public:
  /// Gathers `units` (with their frozen parts) and, if `shows`, lets their leaves show the result.
  /// Collective.
  FullValues(std::vector<ParamGroup>& groups, Communicator& comm,
             const std::vector<std::size_t>& units, bool shows);
  ~FullValues();
  FullValues(const FullValues&) = delete;
  FullValues& operator=(const FullValues&) = delete;

  /// The leaves show their shards again; later calls do nothing.
  void hide() noexcept;
  /// Puts this rank's part of each buffer into its shard, or all of rank 0's into everybody's
  /// (collective). Inside an edit only.
  void write_own();
  void write_first();

 private:
  struct Buffer {
    std::size_t group = 0;
    at::Tensor values;  ///< Undefined where nothing is shown.
  };

  std::vector<ParamGroup>& groups_;
  Communicator& comm_;
  std::vector<Buffer> buffers_;
  bool shown_ = false;
};

}  // namespace convoy::fsdp
