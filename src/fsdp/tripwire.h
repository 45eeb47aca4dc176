// Notices writes to a shard that happened when nobody may write: samples and versions.
#pragma once

#include "flat_param.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// Remembers some 64 values of one unit's slice and the version of every leaf. In-place operations
/// on a leaf raise its version; optimizers that write through .data() (torch::optim::SGD) do not,
/// and are found by the samples unless they leave every one of them as it was.
class Tripwire {
 public:
  /// Takes the samples. The leaves must show their shards.
  void arm(const FlatParam& param);
  /// Takes them again, if armed: after writes that were allowed.
  void rearm(const FlatParam& param) {
    if (armed_) arm(param);
  }
  void disarm() noexcept { armed_ = false; }
  /// The name of a parameter that has changed since arm(), if armed.
  std::optional<std::string> changed(const FlatParam& param) const;

 private:
  struct Sample {
    std::size_t leaf = 0;
    std::int64_t element = 0;
    std::uint64_t bits = 0;
  };

  bool armed_ = false;
  std::vector<Sample> samples_;
  std::vector<std::uint32_t> versions_;
};

}  // namespace convoy::fsdp
