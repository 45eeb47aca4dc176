// Packs, gathers and unpacks.
#include "kept_gather.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace convoy::fsdp {

KeptGather::KeptGather(Communicator& comm, const FlatLayout& layout, const std::vector<bool>& kept,
                       at::ScalarType dtype, const std::string& tag)
    : rank_(comm.rank()),
      slice_numel_(layout.slice_numel),
      copies_(static_cast<std::size_t>(layout.world)) {
  for (int rank = 0; rank < layout.world; ++rank) {
    std::int64_t packed = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      const ParameterPiece piece = piece_of(layout, i, rank);
      if (piece.numel == 0) continue;
      copies_[static_cast<std::size_t>(rank)].push_back(
          {packed, rank * slice_numel_ + piece.slice_offset, piece.numel});
      packed += piece.numel;
    }
    packed_numel_ = std::max(packed_numel_, packed);
  }
  packed_ = comm.allocate(packed_numel_, dtype, {.tag = tag});
  packed_.zero_();
}

WorkPtr KeptGather::begin(Communicator& comm, const at::Tensor& shard, const std::string& tag) {
  for (const Copy& copy : copies_[static_cast<std::size_t>(rank_)]) {
    packed_.narrow(0, copy.packed, copy.numel)
        .copy_(shard.narrow(0, copy.flat - rank_ * slice_numel_, copy.numel));
  }
  received_ = at::empty({packed_numel_ * comm.size()}, packed_.options());
  return comm.all_gather(received_, packed_, {.tag = tag});
}

void KeptGather::finish(const at::Tensor& full) {
  for (std::size_t rank = 0; rank < copies_.size(); ++rank) {
    const auto begin = static_cast<std::int64_t>(rank) * packed_numel_;
    for (const Copy& copy : copies_[rank]) {
      full.narrow(0, copy.flat, copy.numel)
          .copy_(received_.narrow(0, begin + copy.packed, copy.numel));
    }
  }
  received_.reset();
}

}  // namespace convoy::fsdp
