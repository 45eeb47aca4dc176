// Chunks of a tensor from those who hold them, and back.
#include "checkpoint/span_exchange.h"

#include "convoy/base/check.h"
#include "convoy/base/hash.h"
#include "convoy/checkpoint/first_rank.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace convoy::saving {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

std::int64_t whole_numel(const ShardSpan& span) {
  return std::accumulate(span.sizes.begin(), span.sizes.end(), std::int64_t{1},
                         std::multiplies<>());
}

/// Calls `visit(begin, numel)` for each chunk of a tensor.
template <class Visit>
void for_each_chunk(std::int64_t numel, std::size_t element_bytes, const Visit& visit) {
  const std::int64_t step = kChunkBytes / static_cast<std::int64_t>(element_bytes);
  for (std::int64_t begin = 0; begin < numel; begin += step) {
    visit(begin, std::min(step, numel - begin));
  }
}

/// What [begin, begin + numel) has in common with [other, other + count): first element and number.
std::pair<std::int64_t, std::int64_t> common(std::int64_t begin, std::int64_t numel,
                                             std::int64_t other, std::int64_t count) {
  const std::int64_t first = std::max(begin, other);
  const std::int64_t end = std::min(begin + numel, other + count);
  return {first, std::max<std::int64_t>(end - first, 0)};
}

at::Tensor flat_copy_or_view(const at::Tensor& piece) {
  return piece.detach().contiguous().view({-1});
}

}  // namespace

SpanExchange::SpanExchange(std::span<const ShardSpan> spans, Communicator* comm,
                           std::string operation)
    : spans_(spans.begin(), spans.end()), comm_(comm), operation_(std::move(operation)) {
  compare_spans();
  learn_pieces();
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const std::string problem = problem_of(i);
    CONVOY_REQUIRE(problem.empty(), kInvalidArgument, operation_, ": ", problem);
  }
}

void SpanExchange::compare_spans() const {
  if (comm_ == nullptr) return;
  Hasher64 hash;
  for (const ShardSpan& span : spans_) {
    hash.update(concat(span.name, '\n', c10::IntArrayRef(span.sizes), span.leaf.scalar_type(),
                       span.replicated ? " all\n" : " part\n"));
  }
  at::Tensor mine = at::empty({1, 1}, at::kLong);
  *mine.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(hash.digest());
  const at::Tensor all = collect(mine);
  const auto* hashes = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < comm_->size(); ++rank) {
    CONVOY_REQUIRE(hashes[rank] == hashes[0], kMismatch, operation_, ": the parameters of rank ",
                   rank, " have other names, shapes or dtypes than those of rank 0");
  }
}

void SpanExchange::learn_pieces() {
  const auto count = static_cast<std::int64_t>(spans_.size());
  at::Tensor mine = at::empty({count, 2}, at::kLong);
  auto* numbers = mine.mutable_data_ptr<std::int64_t>();
  for (const ShardSpan& span : spans_) {
    *numbers++ = span.begin;
    *numbers++ = span.numel;
  }
  const at::Tensor all = collect(mine);
  const auto* found = all.const_data_ptr<std::int64_t>();
  pieces_.resize(spans_.size());
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    for (std::size_t i = 0; i < spans_.size(); ++i, found += 2) {
      if (!spans_[i].replicated) pieces_[i].push_back({found[0], found[1]});
    }
  }
}

std::string SpanExchange::problem_of(std::size_t index) const {
  const ShardSpan& span = spans_[index];
  auto pieces = pieces_[index];
  if (span.replicated) pieces = {{span.begin, span.numel}};
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::int64_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.numel == 0) continue;
    if (piece.begin != end) end = -1;
    if (end < 0) break;
    end += piece.numel;
  }
  if (end == whole_numel(span)) return {};
  return concat("the pieces of '", span.name, "' on the ranks do not make up its ",
                whole_numel(span), " elements");
}

at::Tensor SpanExchange::collect(const at::Tensor& numbers) const {
  const int world = comm_ == nullptr ? 1 : comm_->size();
  if (world == 1) return numbers.unsqueeze(0);
  at::Tensor all = at::empty({world, numbers.size(0), numbers.size(1)}, at::kLong);
  comm_->all_gather(all, numbers, {.tag = operation_})->wait();
  return all;
}

void SpanExchange::gather(std::size_t index, const at::Tensor& piece, const Take& take) const {
  const ShardSpan& span = spans_[index];
  const at::NoGradGuard no_grad;
  if (comm_ == nullptr || comm_->size() == 1 || span.replicated) {
    if (!is_first()) return;
    const at::Tensor flat = flat_copy_or_view(piece);
    take(flat.const_data_ptr(), flat.nbytes());
    return;
  }
  const at::Tensor flat = flat_copy_or_view(piece);
  at::Tensor chunk;
  for_each_chunk(
      whole_numel(span), flat.element_size(), [&](std::int64_t begin, std::int64_t numel) {
        if (!chunk.defined() || chunk.numel() != numel) chunk = at::empty({numel}, flat.options());
        const auto part_of = [&](const Piece& owner, const at::Tensor& tensor,
                                 std::int64_t origin) {
          const auto [first, count] = common(begin, numel, owner.begin, owner.numel);
          return count == 0 ? tensor.narrow(0, 0, 0) : tensor.narrow(0, first - origin, count);
        };
        std::vector<at::Tensor> parts;
        for (const Piece& owner : pieces_[index]) parts.push_back(part_of(owner, chunk, begin));
        comm_
            ->all_gather(parts, part_of({span.begin, span.numel}, flat, span.begin),
                         wait_for_disk(*comm_, operation_ + " " + span.name))
            ->wait();
        if (is_first()) take(chunk.const_data_ptr(), chunk.nbytes());
      });
}

void SpanExchange::scatter(std::size_t index, const at::Tensor& piece, const Give& give) const {
  const ShardSpan& span = spans_[index];
  const at::NoGradGuard no_grad;
  const at::Tensor target = piece.detach();
  at::Tensor flat = flat_copy_or_view(target);  // A copy if the piece is not contiguous.
  at::Tensor chunk;
  for_each_chunk(
      whole_numel(span), flat.element_size(), [&](std::int64_t begin, std::int64_t numel) {
        if (!chunk.defined() || chunk.numel() != numel) {
          chunk = at::empty({numel}, flat.options());
        }
        if (is_first()) {
          give(begin * static_cast<std::int64_t>(flat.element_size()), chunk.mutable_data_ptr(),
               chunk.nbytes());
        }
        if (comm_ != nullptr) {
          comm_->broadcast(chunk, 0, wait_for_disk(*comm_, operation_ + " " + span.name))->wait();
        }
        const auto [first, count] = common(begin, numel, span.begin, span.numel);
        if (count == 0) return;
        flat.narrow(0, first - span.begin, count).copy_(chunk.narrow(0, first - begin, count));
      });
  if (flat.const_data_ptr() != target.const_data_ptr()) target.copy_(flat.view(target.sizes()));
  torch::autograd::impl::bump_version(piece);
}

}  // namespace convoy::saving
