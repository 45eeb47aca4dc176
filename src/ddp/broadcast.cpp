// Copies rank 0's tensors to the other ranks, many in one operation.
#include "ddp/broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <span>

namespace convoy::ddp {
namespace {

/// A message holds tensors up to this many bytes, or one larger tensor.
constexpr std::int64_t kMessageBytes = 16 << 20;
/// Aligned for every dtype, and for whole vectors.
constexpr std::int64_t kPieceAlignment = 64;

std::int64_t piece_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

void broadcast_message(Communicator& comm, std::span<const at::Tensor> tensors, std::int64_t bytes,
                       const std::string& tag, VersionCounters versions) {
  at::Tensor message = at::empty({bytes}, at::kByte);
  std::vector<at::Tensor> pieces;
  auto* next = static_cast<std::uint8_t*>(message.mutable_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    pieces.push_back(at::from_blob(next, tensor.sizes(), tensor.options().requires_grad(false)));
    next += piece_bytes(tensor);
    if (comm.rank() == 0) pieces.back().copy_(tensor);
  }
  comm.broadcast(message, 0, {.tag = tag})->wait();
  if (comm.rank() == 0) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // variable_data has a version counter of its own, detach shares the tensor's.
    const bool bump = versions == VersionCounters::kBump;
    at::Tensor target = bump ? tensors[i].detach() : tensors[i].variable_data();
    target.copy_(pieces[i]);
  }
}

}  // namespace

void broadcast_from_rank_0(Communicator& comm, const std::vector<at::Tensor>& tensors,
                           const std::string& tag, VersionCounters versions) {
  const at::NoGradGuard no_grad;
  if (comm.size() == 1) return;
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  for (std::size_t end = 0; end <= tensors.size(); ++end) {
    const bool last = end == tensors.size();
    const std::int64_t more = last ? 0 : piece_bytes(tensors[end]);
    if (begin < end && (last || bytes + more > kMessageBytes)) {
      broadcast_message(comm, std::span(tensors).subspan(begin, end - begin), bytes, tag, versions);
      begin = end;
      bytes = 0;
    }
    bytes += more;
  }
}

}  // namespace convoy::ddp
