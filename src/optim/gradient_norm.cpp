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
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace convoy::optim {
namespace {

constexpr std::int64_t kBlock = kShardAlignment;
/// Elements summed between two visits of the accumulator, or converted at a time.
constexpr std::int64_t kChunk = 128 * kBlock;

/// A run of one gradient that this rank sums, from a block's start on.
struct Part {
  at::Tensor gradient;  ///< Contiguous.
  std::int64_t offset;
};

/// What this rank sums.
struct Share {
  std::vector<Part> parts;
  std::vector<std::int64_t> lengths;
};

std::int64_t blocks_of(std::int64_t numel) { return (numel + kBlock - 1) / kBlock; }

at::Tensor contiguous_gradient(const ShardSpan& span, const char* caller) {
  const auto& grad = span.leaf.grad();
  CONVOY_REQUIRE(
      grad.layout() == at::kStrided && grad.is_cpu() && at::isFloatingType(grad.scalar_type()),
      kInvalidArgument, caller, ": the gradient of '", span.name, "' is a ", grad.toString(),
      "; only dense floating point CPU gradients can be scaled");
  CONVOY_REQUIRE(grad.numel() == span.numel, kInvalidArgument, caller, ": the gradient of '",
                 span.name, "' has ", grad.numel(), " elements and its parameter has ", span.numel,
                 " on this rank; set by hand, or still kept under no_sync of a sharded model (call "
                 "this after a synchronised backward)");
  return grad.contiguous();
}

void check_cut(const ShardSpan& span, const char* caller) {
  std::int64_t total = 1;
  for (const auto size : span.sizes) total *= size;
  const auto end = span.begin + span.numel;
  CONVOY_REQUIRE(span.numel == 0 || (span.begin % kBlock == 0 && end <= total &&
                                     (end % kBlock == 0 || end == total)),
                 kInvalidArgument, caller, ": the slice of '", span.name, "' is [", span.begin,
                 ", ", end, ") of ", total, " elements; slices are cut at multiples of ", kBlock);
}

bool has_gradient(const ShardSpan& span) {
  return span.leaf.defined() && span.leaf.grad().defined();
}

/// A rank takes its own slices whole and an equal part of the blocks that all ranks hold.
Share share_of(std::span<const ShardSpan> spans, int rank, int size, const char* caller) {
  std::int64_t common_blocks = 0;
  for (const auto& span : spans) {
    check_cut(span, caller);
    if (span.replicated && has_gradient(span)) common_blocks += blocks_of(span.numel);
  }
  const std::int64_t first = common_blocks * rank / size;
  const std::int64_t last = common_blocks * (rank + 1) / size;

  Share share;
  std::int64_t passed = 0;
  for (const auto& span : spans) {
    if (!has_gradient(span)) continue;
    auto gradient = contiguous_gradient(span, caller);
    std::int64_t begin = 0;
    std::int64_t end = span.numel;
    if (span.replicated) {
      begin = std::clamp((first - passed) * kBlock, std::int64_t{0}, span.numel);
      end = std::clamp((last - passed) * kBlock, std::int64_t{0}, span.numel);
      passed += blocks_of(span.numel);
    }
    if (begin == end) continue;
    share.parts.push_back({std::move(gradient), begin});
    share.lengths.push_back(end - begin);
  }
  return share;
}

/// Which replicated parameters have a gradient, as 15 bits.
std::int64_t presence_of(std::span<const ShardSpan> spans) {
  std::uint32_t hash = 2166136261U;  // FNV-1a over one byte a span.
  for (const auto& span : spans) {
    if (span.replicated) hash = (hash ^ static_cast<std::uint32_t>(has_gradient(span))) * 16777619U;
  }
  return static_cast<std::int64_t>((hash >> 16 ^ hash) & 0x7fff);
}

/// Calls use(pointer, count) on consecutive runs of [begin, end) of `part` that start at blocks;
/// half-precision values are widened first, which is exact.
template <typename Use>
void for_each_run(const Part& part, std::int64_t begin, std::int64_t end, const Use& use) {
  const auto& gradient = part.gradient;
  for (; begin < end; begin += kChunk) {
    const auto at = part.offset + begin;
    const auto count = std::min(kChunk, end - begin);
    switch (gradient.scalar_type()) {
      case at::kFloat: use(gradient.const_data_ptr<float>() + at, count); break;
      case at::kDouble: use(gradient.const_data_ptr<double>() + at, count); break;
      default: {
        const auto wide = gradient.view({-1}).narrow(0, at, count).to(at::kFloat);
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
                      sum.add(std::span(sums).first(static_cast<std::size_t>(blocks_of(count))));
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

/// Throws the same on all ranks, but for one that cannot take part: that throws its own error.
void check_ranks(const std::optional<Error>& own, bool all_took_part, bool same_gradients,
                 const char* caller) {
  if (own) throw *own;
  CONVOY_REQUIRE(all_took_part, kMismatch, caller,
                 ": another rank has a gradient that cannot be scaled; its own error says which, "
                 "and nothing was scaled");
  CONVOY_REQUIRE(same_gradients, kMismatch, caller,
                 ": the ranks disagree about which replicated parameters have gradients; every "
                 "rank must have run a synchronised backward of the same model, and zero_grad on "
                 "all or none");
}

}  // namespace

double gradient_norm(std::span<const ShardSpan> spans, Communicator* comm, double p,
                     const char* caller, const std::string& arguments) {
  const std::string tag = caller + arguments;
  const at::NoGradGuard no_grad;
  const int rank = comm == nullptr ? 0 : comm->rank();
  const int size = comm == nullptr ? 1 : comm->size();
  const auto presence = presence_of(spans);
  Share share;
  std::optional<Error> error;  // Thrown after the exchange, so that no rank waits for this one.
  try {
    share = share_of(spans, rank, size, caller);
  } catch (const Error& caught) {
    error = caught;
  }
  const std::int64_t failed = error ? 1 : 0;

  if (p == std::numeric_limits<double>::infinity()) {
    std::array<std::int64_t, 4> words = {local_largest(share), presence, -presence, failed};
    combine(comm, words, ReduceOp::kMax, tag);
    check_ranks(error, words[3] == 0, words[1] == -words[2], caller);
    return std::bit_cast<double>(words[0]);
  }
  // All presences are equal exactly if size * sum(presence^2) = sum(presence)^2.
  constexpr int kWords = ExactSum::kWords;
  std::array<std::int64_t, kWords + 3> words{};
  const auto own = local_sum(share, p).words();
  std::copy(own.begin(), own.end(), words.begin());
  words[kWords] = presence;
  words[kWords + 1] = presence * presence;
  words[kWords + 2] = failed;
  combine(comm, words, ReduceOp::kSum, tag);
  check_ranks(error, words[kWords + 2] == 0,
              size * words[kWords + 1] == words[kWords] * words[kWords], caller);
  const double total = ExactSum::from_words(std::span(words).first<kWords>()).rounded();
  if (p == 2) return std::sqrt(total);
  return p == 1 ? total : std::pow(total, 1 / p);
}

std::vector<ShardSpan> spans_of_process(const std::vector<at::Tensor>& parameters,
                                        const char* caller) {
  std::vector<ShardSpan> spans;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    CONVOY_REQUIRE(parameter.defined(), kInvalidArgument, caller, ": parameter ", i,
                   " is an undefined tensor");
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    spans.push_back(whole_span(concat("parameter ", i), parameter));
  }
  return spans;
}

}  // namespace convoy::optim
