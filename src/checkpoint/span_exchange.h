// Moves whole tensors, which the ranks hold in pieces, to and from rank 0, a few MiB at a time.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace convoy::saving {

/// Knows which rank holds what of each span's tensor. `gather` and `scatter` serve any tensor that
/// is cut like the span: the parameter itself, or the state of its optimizer.
/// Thread rule: one thread at a time. All calls are collective (null: one process).
class SpanExchange {
 public:
  /// Receives the next bytes of a tensor, on rank 0.
  using Take = std::function<void(const void* data, std::size_t bytes)>;
  /// Fills in bytes from `begin` on, on rank 0.
  using Give = std::function<void(std::int64_t begin, void* data, std::size_t bytes)>;

  /// `operation` is for messages. Errors, the same on all ranks: kMismatch if the ranks' spans have
  /// other names, shapes or dtypes; kInvalidArgument if their pieces do not make up the tensor.
  SpanExchange(std::span<const ShardSpan> spans, Communicator* comm, std::string operation);

  std::size_t size() const noexcept { return spans_.size(); }
  const ShardSpan& span(std::size_t index) const { return spans_[index]; }
  const std::string& operation() const noexcept { return operation_; }
  Communicator* comm() const noexcept { return comm_; }

  /// `piece` has the elements of the span's leaf.
  void gather(std::size_t index, const at::Tensor& piece, const Take& take) const;
  /// Writes `piece` and raises its version.
  void scatter(std::size_t index, const at::Tensor& piece, const Give& give) const;
  /// All ranks' rows of numbers: int64 [n, k] to [world, n, k].
  at::Tensor collect(const at::Tensor& numbers) const;

 private:
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t numel = 0;
  };

  bool is_first() const noexcept { return comm_ == nullptr || comm_->rank() == 0; }
  void compare_spans() const;
  void learn_pieces();
  std::string problem_of(std::size_t index) const;

  std::vector<ShardSpan> spans_;
  Communicator* comm_;
  std::string operation_;
  std::vector<std::vector<Piece>> pieces_;  ///< By span and rank; empty for a replicated span.
};

}  // namespace convoy::saving
