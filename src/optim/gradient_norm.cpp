// The total norm of gradients that lie on several ranks.
#include "optim/gradient_norm.h"

#include "convoy/base/check.h"
#include "optim/block_sums.h"
#include "optim/exact_sum.h"
#include "optim/parallel_ranges.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

namespace convoy::optim {
namespace {

constexpr std::int64_t kBlock = kShardAlignment;
/// Elements summed between two visits of the accumulator, or converted at a time.
constexpr std::int64_t kChunk = 128 * kBlock;

/// What this rank sums: flat contiguous gradients, each from a block's start on.
struct Share {
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> lengths;
  std::int64_t replicated_with_gradient = 0;  ///< A hash of which they are, below 2^15.
};

std::int64_t blocks_of(std::int64_t numel) { return (numel + kBlock - 1) / kBlock; }

at::Tensor flat_gradient(const ShardSpan& span) {
  const auto& grad = span.leaf.grad();
  CONVOY_REQUIRE(
      grad.layout() == at::kStrided && grad.is_cpu() && at::isFloatingType(grad.scalar_type()),
      kInvalidArgument, "clip_grad_norm_: the gradient of '", span.name, "' is a ", grad.toString(),
      "; only dense floating point CPU gradients can be clipped");
  CONVOY_REQUIRE(grad.numel() == span.numel, kInvalidArgument, "clip_grad_norm_: the gradient of '",
                 span.name, "' has ", grad.numel(), " elements and its parameter has ", span.numel,
                 " on this rank");
  return grad.detach().contiguous().view({-1});
}

void check_cut(const ShardSpan& span) {
  std::int64_t total = 1;
  for (const auto size : span.sizes) total *= size;
  const auto end = span.begin + span.numel;
  CONVOY_REQUIRE(
      span.numel == 0 ||
          (span.begin % kBlock == 0 && end <= total && (end % kBlock == 0 || end == total)),
      kInvalidArgument, "clip_grad_norm_: the slice of '", span.name, "' is [", span.begin, ", ",
      end, ") of ", total, " elements; slices are cut at multiples of ", kBlock);
}

bool has_gradient(const ShardSpan& span) {
  return span.leaf.defined() && span.leaf.grad().defined();
}

/// A rank takes its own slices whole and an equal part of the blocks that all ranks hold.
Share share_of(std::span<const ShardSpan> spans, int rank, int size) {
  std::int64_t common_blocks = 0;
  std::uint32_t hash = 2166136261u;  // FNV-1a over one byte a replicated span.
  for (const auto& span : spans) {
    check_cut(span);
    if (!span.replicated) continue;
    if (has_gradient(span)) common_blocks += blocks_of(span.numel);
    hash = (hash ^ static_cast<std::uint32_t>(has_gradient(span))) * 16777619u;
  }
  const std::int64_t first = common_blocks * rank / size;
  const std::int64_t last = common_blocks * (rank + 1) / size;

  Share share;
  share.replicated_with_gradient = static_cast<std::int64_t>((hash >> 16 ^ hash) & 0x7fff);
  std::int64_t passed = 0;
  for (const auto& span : spans) {
    if (!has_gradient(span)) continue;
    const auto flat = flat_gradient(span);
    std::int64_t begin = 0;
    std::int64_t end = span.numel;
    if (span.replicated) {
      begin = std::clamp((first - passed) * kBlock, std::int64_t{0}, span.numel);
      end = std::clamp((last - passed) * kBlock, std::int64_t{0}, span.numel);
      passed += blocks_of(span.numel);
    }
    if (begin == end) continue;
    share.parts.push_back(flat.narrow(0, begin, end - begin));
    share.lengths.push_back(end - begin);
  }
  return share;
}

/// Calls use(pointer, count) on consecutive runs of [begin, end) of `part` that start at blocks;
/// half-precision values are widened first, which is exact.
template <typename Use>
void for_each_run(const at::Tensor& part, std::int64_t begin, std::int64_t end, const Use& use) {
  for (; begin < end; begin += kChunk) {
    const auto count = std::min(kChunk, end - begin);
    switch (part.scalar_type()) {
      case at::kFloat: use(part.const_data_ptr<float>() + begin, count); break;
      case at::kDouble: use(part.const_data_ptr<double>() + begin, count); break;
      default: {
        const auto wide = part.narrow(0, begin, count).to(at::kFloat);
        use(wide.const_data_ptr<float>(), count);
      }
    }
  }
}

ExactSum local_sum(const Share& share, double p) {
  ExactSum total;
  std::mutex mutex;
  parallel_pieces(share.lengths, kParallelGrain, kBlock,
                  [&](std::size_t i, std::int64_t begin, std::int64_t end) {
                    ExactSum sum;
                    std::array<double, kChunk / kBlock> sums;
                    for_each_run(share.parts[i], begin, end, [&](auto* values, std::int64_t count) {
                      if (p == 2) {
                        block_sums_of_squares(values, count, sums.data());
                      } else if (p == 1) {
                        block_sums_of_magnitudes(values, count, sums.data());
                      } else {
                        block_sums_of_powers(values, count, p, sums.data());
                      }
                      for (std::int64_t k = 0; k < blocks_of(count); ++k) sum.add(sums[k]);
                    });
                    const std::lock_guard lock(mutex);
                    total.add(sum);
                  });
  return total;
}

/// The bits of the largest magnitude, which order as the magnitudes do, nan last.
std::int64_t local_largest(const Share& share) {
  std::int64_t largest = 0;
  std::mutex mutex;
  parallel_pieces(share.lengths, kParallelGrain, kBlock,
                  [&](std::size_t i, std::int64_t begin, std::int64_t end) {
                    for_each_run(share.parts[i], begin, end, [&](auto* values, std::int64_t count) {
                      const auto here =
                          std::bit_cast<std::int64_t>(largest_magnitude(values, count));
                      const std::lock_guard lock(mutex);
                      largest = std::max(largest, here);
                    });
                  });
  return largest;
}

void combine(Communicator* comm, std::span<std::int64_t> words, ReduceOp op,
             const std::string& tag) {
  if (comm == nullptr || comm->size() == 1) return;
  // A tensor that owns its memory: a failed operation may let go of it later than this function.
  const auto count = static_cast<std::int64_t>(words.size());
  const auto view = at::from_blob(words.data(), {count}, at::kLong);
  const auto tensor = view.clone();
  comm->all_reduce(tensor, op, {.tag = tag})->wait();
  view.copy_(tensor);
}

void check_same_gradients(bool same) {
  CONVOY_REQUIRE(same, kMismatch,
                 "clip_grad_norm_: the ranks disagree about which replicated parameters have "
                 "gradients; every rank must have run a synchronised backward of the same model, "
                 "and zero_grad on all or none");
}

}  // namespace

double gradient_norm(std::span<const ShardSpan> spans, Communicator* comm, double p,
                     const std::string& tag) {
  const at::NoGradGuard no_grad;
  const int rank = comm == nullptr ? 0 : comm->rank();
  const int size = comm == nullptr ? 1 : comm->size();
  const auto share = share_of(spans, rank, size);
  const auto hash = share.replicated_with_gradient;

  if (p == std::numeric_limits<double>::infinity()) {
    std::array<std::int64_t, 3> words = {local_largest(share), hash, -hash};
    combine(comm, words, ReduceOp::kMax, tag);
    check_same_gradients(words[1] == -words[2]);
    return std::bit_cast<double>(words[0]);
  }
  // Besides the sum's words, the hash and its square: all hashes are equal exactly if
  // size * sum(hash^2) = sum(hash)^2.
  constexpr int kWords = ExactSum::kWords;
  std::array<std::int64_t, kWords + 2> words{};
  const auto own = local_sum(share, p).words();
  std::copy(own.begin(), own.end(), words.begin());
  words[kWords] = hash;
  words[kWords + 1] = hash * hash;
  combine(comm, words, ReduceOp::kSum, tag);
  check_same_gradients(comm == nullptr ||
                       size * words[kWords + 1] == words[kWords] * words[kWords]);
  const double total = ExactSum::from_words(std::span(words).first<kWords>()).rounded();
  if (p == 2) return std::sqrt(total);
  return p == 1 ? total : std::pow(total, 1 / p);
}

}  // namespace convoy::optim
