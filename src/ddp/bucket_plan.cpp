// Splits parameters into gradient buckets by size and order. Pure: no tensors, no ranks.
#include "ddp/bucket_plan.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <numeric>

namespace convoy::ddp {
namespace {

std::int64_t item_bytes(c10::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// Elements that a gradient takes in the flat buffer, with its flags and padding.
std::int64_t slot_extent(const PlanParameter& parameter) {
  const std::int64_t step = kSlotAlignmentBytes / item_bytes(parameter.dtype);
  return (parameter.numel + kFlagsPerSlot + step - 1) / step * step;
}

void require_permutation(std::span<const std::size_t> order, std::size_t count) {
  CONVOY_CHECK(order.size() == count, "order has ", order.size(), " entries for ", count);
  std::vector<bool> seen(count, false);
  for (const std::size_t index : order) {
    CONVOY_CHECK(index < count && !seen[index], "index ", index, " twice or out of range");
    seen[index] = true;
  }
}

/// The bucket of one dtype that is being filled.
struct OpenBucket {
  BucketPlan bucket;
  std::size_t last_position = 0;  ///< Of its newest parameter in the order.
  bool is_first = true;
};

struct ClosedBucket {
  BucketPlan bucket;
  std::size_t last_position;
};

}  // namespace

std::int64_t BucketPlan::bytes() const { return numel * item_bytes(dtype); }

std::vector<std::size_t> reverse_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

Plan plan_buckets(std::span<const PlanParameter> parameters, std::span<const std::size_t> order,
                  BucketLimits limits) {
  require_permutation(order, parameters.size());
  std::vector<OpenBucket> open;
  std::vector<ClosedBucket> closed;
  const auto close = [&closed](OpenBucket& from) {
    const BucketPlan next{.dtype = from.bucket.dtype,
                          .begin = from.bucket.begin + from.bucket.numel,
                          .numel = 0,
                          .slots = {}};
    closed.push_back({std::move(from.bucket), from.last_position});
    from.bucket = next;
    from.is_first = false;
  };
  for (std::size_t position = 0; position < order.size(); ++position) {
    const PlanParameter& parameter = parameters[order[position]];
    auto current = std::find_if(open.begin(), open.end(), [&](const OpenBucket& candidate) {
      return candidate.bucket.dtype == parameter.dtype;
    });
    if (current == open.end()) {
      open.emplace_back();
      current = std::prev(open.end());
      current->bucket.dtype = parameter.dtype;
    }
    const std::int64_t extent = slot_extent(parameter);
    const std::int64_t limit = current->is_first ? limits.first_bytes : limits.cap_bytes;
    const std::int64_t bytes = current->bucket.bytes() + extent * item_bytes(parameter.dtype);
    if (!current->bucket.slots.empty() && bytes > limit) close(*current);
    BucketPlan& bucket = current->bucket;
    bucket.slots.push_back({order[position], bucket.begin + bucket.numel, parameter.numel});
    bucket.numel += extent;
    current->last_position = position;
  }
  Plan plan;
  for (OpenBucket& last : open) {
    plan.flats.push_back({last.bucket.dtype, last.bucket.begin + last.bucket.numel});
    if (!last.bucket.slots.empty()) closed.push_back({std::move(last.bucket), last.last_position});
  }
  std::sort(closed.begin(), closed.end(), [](const ClosedBucket& a, const ClosedBucket& b) {
    return a.last_position < b.last_position;
  });
  for (ClosedBucket& bucket : closed) plan.buckets.push_back(std::move(bucket.bucket));
  return plan;
}

}  // namespace convoy::ddp
