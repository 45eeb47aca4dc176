// Planning buckets: properties that hold for any parameters, over seeded random ones.
#include "ddp/bucket_plan.h"

#include "convoy/base/error.h"
#include "support/catch.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace convoy::ddp {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::int64_t item_bytes(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

struct Sample {
  std::vector<PlanParameter> parameters;
  std::vector<std::size_t> order;
  BucketLimits limits;
};

Sample random_sample(std::mt19937& random) {
  const std::vector<c10::ScalarType> dtypes = {c10::ScalarType::Float, c10::ScalarType::BFloat16,
                                               c10::ScalarType::Double};
  Sample sample;
  const std::size_t count = 1 + random() % 40;
  const std::size_t used_dtypes = 1 + random() % dtypes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t largest = random() % 4 == 0 ? 5000 : 40;
    sample.parameters.push_back(
        {static_cast<std::int64_t>(random()) % largest, dtypes[random() % used_dtypes]});
  }
  sample.order = reverse_order(count);
  if (random() % 2 == 0) std::shuffle(sample.order.begin(), sample.order.end(), random);
  sample.limits = {.first_bytes = 1 + static_cast<std::int64_t>(random()) % 2000,
                   .cap_bytes = 1 + static_cast<std::int64_t>(random()) % 20000};
  return sample;
}

void check_every_parameter_once(const Sample& sample, const Plan& plan) {
  std::vector<int> times(sample.parameters.size(), 0);
  for (const BucketPlan& bucket : plan.buckets) {
    REQUIRE_FALSE(bucket.slots.empty());
    for (const SlotPlan& slot : bucket.slots) {
      ++times[slot.parameter];
      REQUIRE(slot.numel == sample.parameters[slot.parameter].numel);
      REQUIRE(sample.parameters[slot.parameter].dtype == bucket.dtype);
    }
  }
  REQUIRE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
}

void check_caps(const Sample& sample, const Plan& plan) {
  std::map<c10::ScalarType, int> of_dtype;
  for (const BucketPlan& bucket : plan.buckets) {
    const bool first = of_dtype[bucket.dtype]++ == 0;
    const std::int64_t cap = first ? sample.limits.first_bytes : sample.limits.cap_bytes;
    REQUIRE((bucket.slots.size() == 1 || bucket.bytes() <= cap));
  }
}

void check_order(const Sample& sample, const Plan& plan) {
  std::vector<std::size_t> position(sample.order.size());
  for (std::size_t i = 0; i < sample.order.size(); ++i) position[sample.order[i]] = i;
  std::map<c10::ScalarType, std::size_t> last_of_dtype;
  std::size_t last_of_bucket = 0;
  for (const BucketPlan& bucket : plan.buckets) {
    for (const SlotPlan& slot : bucket.slots) {
      const auto before = last_of_dtype.find(bucket.dtype);
      REQUIRE((before == last_of_dtype.end() || before->second < position[slot.parameter]));
      last_of_dtype[bucket.dtype] = position[slot.parameter];
    }
    REQUIRE(last_of_dtype[bucket.dtype] >= last_of_bucket);
    last_of_bucket = last_of_dtype[bucket.dtype];
  }
}

/// Slots and buckets lie end to end, aligned, without overlap, and fill their flat buffer.
void check_places(const Plan& plan) {
  std::map<c10::ScalarType, std::int64_t> end;
  for (const BucketPlan& bucket : plan.buckets) {
    REQUIRE(bucket.begin == end[bucket.dtype]);
    std::int64_t free = bucket.begin;
    for (const SlotPlan& slot : bucket.slots) {
      REQUIRE(slot.begin >= free);
      REQUIRE(slot.begin * item_bytes(bucket.dtype) % kSlotAlignmentBytes == 0);
      free = slot.begin + slot.numel + kFlagsPerSlot;
    }
    end[bucket.dtype] = bucket.begin + bucket.numel;
    REQUIRE(free <= end[bucket.dtype]);
    REQUIRE((end[bucket.dtype] - free) * item_bytes(bucket.dtype) < kSlotAlignmentBytes);
  }
  REQUIRE(plan.flats.size() == end.size());
  for (const FlatPlan& flat : plan.flats) REQUIRE(flat.numel == end[flat.dtype]);
}

}  // namespace

TEST_CASE("bucket plans hold their promises for any parameters, order and limits") {
  std::mt19937 random(20240229);
  for (int i = 0; i < 500; ++i) {
    const Sample sample = random_sample(random);
    const Plan plan = plan_buckets(sample.parameters, sample.order, sample.limits);
    check_every_parameter_once(sample, plan);
    check_caps(sample, plan);
    check_order(sample, plan);
    check_places(plan);
  }
}

TEST_CASE("the size of the flat buffers does not depend on the order") {
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    Sample sample = random_sample(random);
    std::map<c10::ScalarType, std::int64_t> sizes;
    for (const FlatPlan& flat :
         plan_buckets(sample.parameters, sample.order, sample.limits).flats) {
      sizes[flat.dtype] = flat.numel;
    }
    std::shuffle(sample.order.begin(), sample.order.end(), random);
    const Plan other = plan_buckets(sample.parameters, sample.order, sample.limits);
    REQUIRE(other.flats.size() == sizes.size());
    for (const FlatPlan& flat : other.flats) REQUIRE(flat.numel == sizes[flat.dtype]);
  }
}

TEST_CASE("the first bucket is small, the rest take up to the cap") {
  // 40 parameters of 64 KiB each: 1 MiB holds 15 with their flags, 1.5 MiB holds 23.
  const std::vector<PlanParameter> parameters(40, {16384, c10::ScalarType::Float});
  const auto order = reverse_order(parameters.size());
  const Plan plan = plan_buckets(parameters, order, {kMiB, 3 * kMiB / 2});
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[0].slots.size() == 15);
  CHECK(plan.buckets[1].slots.size() == 23);
  CHECK(plan.buckets[2].slots.size() == 2);
  CHECK(plan.buckets[0].slots.front().parameter == 39);
  CHECK(plan.buckets[2].slots.back().parameter == 0);
}

TEST_CASE("for the base model the default limits leave little to the last bucket") {
  // vocabulary 256, width 768, 8 blocks, 128 positions: 57,196,032 elements.
  constexpr std::int64_t kWidth = 768;
  std::vector<PlanParameter> parameters;
  const auto add = [&](std::int64_t numel) {
    parameters.push_back({numel, c10::ScalarType::Float});
  };
  add(256 * kWidth);
  add(128 * kWidth);
  for (int block = 0; block < 8; ++block) {
    for (const std::int64_t rows : {3, 1, 4}) {
      add(rows * kWidth * kWidth);
      add(rows * kWidth);
    }
    add(4 * kWidth * kWidth);
    for (int i = 0; i < 5; ++i) add(kWidth);
  }
  add(kWidth);
  add(kWidth);
  add(256 * kWidth);
  std::int64_t numel = 0;
  for (const PlanParameter& parameter : parameters) numel += parameter.numel;
  REQUIRE(numel == 57196032);

  const Plan plan = plan_buckets(parameters, reverse_order(parameters.size()), {kMiB, 25 * kMiB});
  const double all = static_cast<double>(plan.flats.front().numel) * 4;
  // Every bucket but the last is launched before the last gradient is ready.
  CHECK(static_cast<double>(plan.buckets.back().bytes()) / all < 0.2);
  CHECK(plan.buckets.front().bytes() <= kMiB);
  // What flags and padding cost.
  CHECK(all / 4 < static_cast<double>(numel) * 1.0001);
}

TEST_CASE("a parameter above the cap is alone and whole") {
  const std::vector<PlanParameter> parameters = {
      {10, c10::ScalarType::Float}, {100000, c10::ScalarType::Float}, {10, c10::ScalarType::Float}};
  const auto order = reverse_order(3);
  const Plan plan = plan_buckets(parameters, order, {4096, 4096});
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[1].slots.size() == 1);
  CHECK(plan.buckets[1].slots.front().numel == 100000);
}

TEST_CASE("no parameters give no buckets, and a wrong order is an internal error") {
  CHECK(plan_buckets({}, {}, {1, 1}).buckets.empty());
  const std::vector<PlanParameter> two(2, {3, c10::ScalarType::Float});
  const std::vector<std::size_t> twice = {0, 0};
  const std::vector<std::size_t> beyond = {0, 2};
  const std::vector<std::size_t> few = {0};
  CHECK_THROWS_AS(plan_buckets(two, twice, {1, 1}), Error);
  CHECK_THROWS_AS(plan_buckets(two, beyond, {1, 1}), Error);
  CHECK_THROWS_AS(plan_buckets(two, few, {1, 1}), Error);
}

}  // namespace convoy::ddp
