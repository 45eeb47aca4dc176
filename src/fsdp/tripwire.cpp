// Samples evenly over the slice; positions stay the same for the life of the unit.
#include "tripwire.h"

#include <algorithm>
#include <cstring>

namespace convoy::fsdp {
namespace {

constexpr std::int64_t kSamples = 64;

std::uint64_t bits_at(const at::Tensor& values, std::int64_t element) {
  const auto item = static_cast<std::size_t>(values.element_size());
  std::uint64_t bits = 0;
  std::memcpy(&bits,
              static_cast<const std::byte*>(values.const_data_ptr()) +
                  static_cast<std::size_t>(element) * item,
              std::min(item, sizeof(bits)));
  return bits;
}

}  // namespace

void Tripwire::arm(const FlatParam& param) {
  const auto& leaves = param.leaves();
  if (samples_.empty()) {
    std::int64_t total = 0;
    for (const auto& leaf : leaves) total += leaf.piece.numel;
    const std::int64_t stride = std::max<std::int64_t>(1, total / kSamples);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      // At least one of every piece, so that a parameter much smaller than the rest is seen too.
      const std::int64_t numel = leaves[i].piece.numel;
      for (std::int64_t at = std::min(stride, numel) / 2; at < numel; at += stride) {
        samples_.push_back({i, at, 0});
      }
    }
  }
  for (Sample& sample : samples_) {
    sample.bits = bits_at(leaves[sample.leaf].shard_view, sample.element);
  }
  versions_.clear();
  for (const auto& leaf : leaves) {
    versions_.push_back(static_cast<std::uint32_t>(leaf.tensor._version()));
  }
  armed_ = true;
}

std::optional<std::string> Tripwire::changed(const FlatParam& param) const {
  if (!armed_) return std::nullopt;
  const auto& leaves = param.leaves();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (versions_[i] != static_cast<std::uint32_t>(leaves[i].tensor._version())) {
      return leaves[i].name;
    }
  }
  for (const Sample& sample : samples_) {
    if (bits_at(leaves[sample.leaf].shard_view, sample.element) != sample.bits) {
      return leaves[sample.leaf].name;
    }
  }
  return std::nullopt;
}

}  // namespace convoy::fsdp
