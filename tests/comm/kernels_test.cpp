// The pure parts: reduction kernels against plain loops, and the cutting of operations into chunks.
#include "comm/host/reduce_kernels.h"
#include "comm/host/stage_plan.h"
#include "comm/values.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using namespace convoy;
using namespace convoy::test;

namespace {

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

std::byte* mutable_bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace

TEST_CASE("kernels give the bits of the definition at every length, offset and way of storing") {
  const auto dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                              at::kInt, at::kByte, at::kBool);
  const auto sources = GENERATE(1, 2, 3, 4, 5);
  for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
    if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) continue;
    for (const auto store : {StoreMode::kThroughCache, StoreMode::kStreaming}) {
      for (const std::int64_t count : {1, 2, 15, 16, 17, 31, 1023, 1024, 1025, 3000}) {
        const std::int64_t offset = count % 5;
        std::vector<at::Tensor> inputs;
        std::vector<const std::byte*> pointers;
        for (int r = 0; r < sources; ++r) {
          inputs.push_back(values_of(r, count + offset, dtype).narrow(0, offset, count));
          pointers.push_back(bytes_of(inputs.back()));
        }
        const auto expected = reduced(inputs, op);
        INFO(c10::toString(dtype) << " " << to_string(op) << " " << count);
        // Into one that is none of the sources.
        auto apart = at::zeros({count + 3}, inputs[0].options());
        std::byte* const target = mutable_bytes_of(apart.narrow(0, 1, count));
        reduce({dtype, op, pointers, {&target, 1}, count, store});
        CHECK(same_bits(apart.narrow(0, 1, count).contiguous(), expected));
        CHECK(apart[0].item<double>() == 0);
        CHECK(apart.narrow(0, count + 1, 2).eq(0).all().item<bool>());
        // Into two targets, one of which is a source.
        auto other = at::zeros({count + 3}, inputs[0].options());
        const std::vector<std::byte*> targets{mutable_bytes_of(inputs.back()),
                                              mutable_bytes_of(other.narrow(0, 1, count))};
        reduce({dtype, op, pointers, targets, count, store});
        CHECK(same_bits(inputs.back().contiguous(), expected));
        CHECK(same_bits(other.narrow(0, 1, count).contiguous(), expected));
        CHECK(other[0].item<double>() == 0);
        CHECK(other.narrow(0, count + 1, 2).eq(0).all().item<bool>());
      }
    }
  }
}

TEST_CASE("averages are divided once, at the ends of the range of numbers too") {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> values{Limits::denorm_min(),
                                  3 * Limits::denorm_min(),
                                  Limits::min(),
                                  1.5F * Limits::min(),
                                  0.1F,
                                  Limits::max() / 8,
                                  -0.0F,
                                  Limits::infinity(),
                                  Limits::quiet_NaN()};
  const auto count = static_cast<std::int64_t>(values.size());
  for (const std::size_t sources : {2U, 3U, 4U, 7U, 8U}) {
    const auto input = at::tensor(values);
    const std::vector<const std::byte*> pointers(sources, bytes_of(input));
    auto result = at::zeros({count}, at::kFloat);
    std::byte* const target = mutable_bytes_of(result);
    reduce({at::kFloat, ReduceOp::kAvg, pointers, {&target, 1}, count, StoreMode::kThroughCache});
    for (std::size_t i = 0; i < values.size(); ++i) {
      volatile float sum = values[i];
      for (std::size_t r = 1; r < sources; ++r) sum = sum + values[i];
      const float expected = sum / static_cast<float>(sources);
      const float got = result[static_cast<std::int64_t>(i)].item<float>();
      INFO(sources << " times " << values[i]);
      CHECK((std::isnan(expected)
                 ? std::isnan(got)
                 : std::signbit(got) == std::signbit(expected) && got == expected));
    }
  }
}

TEST_CASE("minimum and maximum are one of the sources in every bit") {
  // A signalling NaN and the least subnormal number.
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  const bool is_float = dtype == at::kFloat;
  const auto numbers = is_float ? at::full({70}, 1, at::kInt) : at::full({70}, 1, at::kLong);
  numbers[3] = is_float ? std::int64_t{0x7f800001} : std::int64_t{0x7ff0000000000001};
  const auto special = numbers.view(dtype);
  const auto ones = at::ones({70}, dtype);
  const bool could_flush = at::globalContext().setFlushDenormal(true);
  for (const std::size_t sources : {2U, 3U}) {
    std::vector<const std::byte*> pointers(sources, bytes_of(special));
    auto least = at::zeros({70}, dtype);
    auto most = at::zeros({70}, dtype);
    std::byte* const least_target = mutable_bytes_of(least);
    std::byte* const most_target = mutable_bytes_of(most);
    reduce({dtype, ReduceOp::kMax, pointers, {&most_target, 1}, 70, StoreMode::kStreaming});
    pointers.back() = bytes_of(ones);
    reduce({dtype, ReduceOp::kMin, pointers, {&least_target, 1}, 70, StoreMode::kThroughCache});
    CHECK(same_bits(most, special));
    CHECK(same_bits(least, special));
  }
  if (could_flush) at::globalContext().setFlushDenormal(false);
}

TEST_CASE("a target may begin at any byte") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  const std::int64_t count = 300;
  const std::vector<at::Tensor> inputs{values_of(0, count, dtype), values_of(1, count, dtype)};
  const std::vector<const std::byte*> sources{bytes_of(inputs[0]), bytes_of(inputs[1])};
  const auto expected = reduced(inputs, ReduceOp::kSum);
  for (const auto store : {StoreMode::kThroughCache, StoreMode::kStreaming}) {
    for (const std::size_t offset : {1U, 2U, 4U, 9U}) {
      std::vector<std::byte> room(expected.nbytes() + 64);
      std::byte* const target = room.data() + offset;
      reduce({dtype, ReduceOp::kSum, sources, {&target, 1}, count, store});
      CHECK(std::memcmp(target, expected.const_data_ptr(), expected.nbytes()) == 0);
    }
  }
}

TEST_CASE("half types are summed wide and rounded once") {
  // 1 and twice half of its last place: each addend alone would be lost, together they are not.
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const double small = dtype == at::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
    auto a = at::full({1}, 1.0, at::TensorOptions().dtype(dtype));
    auto b = at::full({1}, small, at::TensorOptions().dtype(dtype));
    auto c = b.clone();
    auto result = at::zeros({1}, a.options());
    const std::vector<const std::byte*> sources{bytes_of(a), bytes_of(b), bytes_of(c)};
    std::byte* const target = mutable_bytes_of(result);
    reduce({dtype, ReduceOp::kSum, sources, {&target, 1}, 1, StoreMode::kThroughCache});
    CHECK(result.item<double>() == 1.0 + 2 * small);
  }
}

TEST_CASE("bfloat16 rounds to nearest even like torch, over many values") {
  const auto wide = at::cat({at::arange(0, 100000).to(at::kFloat) * 1.2345e-3F - 60.0F,
                             at::full({1}, std::numeric_limits<float>::quiet_NaN()),
                             at::full({1}, std::numeric_limits<float>::infinity()),
                             at::full({1}, -std::numeric_limits<float>::infinity())});
  const auto a = wide.to(at::kBFloat16);
  const auto b = (wide * 0.37F).to(at::kBFloat16);
  auto result = at::empty_like(a);
  const std::vector<const std::byte*> sources{bytes_of(a), bytes_of(b)};
  std::byte* const target = mutable_bytes_of(result);
  reduce(
      {at::kBFloat16, ReduceOp::kSum, sources, {&target, 1}, a.numel(), StoreMode::kThroughCache});
  const auto expected = (a.to(at::kFloat) + b.to(at::kFloat)).to(at::kBFloat16);
  CHECK(at::equal(result.nan_to_num(-1.0, 3e38, -3e38), expected.nan_to_num(-1.0, 3e38, -3e38)));
  CHECK(at::equal(result.isnan(), expected.isnan()));
}

TEST_CASE("integers wrap") {
  auto a = at::full({3}, std::numeric_limits<std::int64_t>::max(), at::kLong);
  auto b = at::ones({3}, at::kLong);
  const std::vector<const std::byte*> sources{bytes_of(a), bytes_of(b)};
  std::byte* const target = mutable_bytes_of(b);
  reduce({at::kLong, ReduceOp::kSum, sources, {&target, 1}, 3, StoreMode::kThroughCache});
  CHECK(b.eq(std::numeric_limits<std::int64_t>::min()).all().item<bool>());
}

TEST_CASE("chunks cover an operation exactly and never cross the end of a stage") {
  constexpr std::size_t kStage = 4096;
  std::uint64_t position = 0;
  for (const std::int64_t part_bytes : {1, 63, 64, 65, 500, 511, 512, 513, 5000, 70000}) {
    for (const int parts : {1, 2, 3, 5}) {
      const auto plan = plan_stage(part_bytes, parts, kStage / 8);
      std::int64_t covered = 0;
      for (std::int64_t chunk = 0; chunk < plan.chunks(); ++chunk) {
        REQUIRE(plan.begin(chunk) == covered);
        REQUIRE(plan.bytes(chunk) > 0);
        covered += plan.bytes(chunk);
        REQUIRE(plan.stage_bytes(chunk) <= static_cast<std::int64_t>(kStage / 8));
        REQUIRE(plan.pitch(chunk) >= plan.bytes(chunk));
        const auto range = next_range(position, plan.stage_bytes(chunk), kStage);
        REQUIRE(range.begin >= position);
        REQUIRE(range.end - range.begin == static_cast<std::uint64_t>(plan.stage_bytes(chunk)));
        REQUIRE(range.begin / kStage == (range.end - 1) / kStage);
        REQUIRE(range.begin % 64 == 0);
        position = range.end;
      }
      REQUIRE(covered == part_bytes);
    }
  }
}
