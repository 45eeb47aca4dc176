// Splits parameters into gradient buckets by size and order. Pure: no tensors, no ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace convoy::ddp {

/// What planning needs to know of one parameter.
struct PlanParameter {
  std::int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// Upper bounds of a bucket's bytes. A parameter that is larger gets a bucket of its own.
struct BucketLimits {
  std::int64_t first_bytes =
      0;  ///< Of the first bucket of each dtype: small, so that it starts early.
  std::int64_t cap_bytes = 0;  ///< Of all others.
};

/// Where one gradient lies in the flat buffer of its dtype, in elements: the gradient's `numel`
/// elements, then kFlagsPerSlot flags, then zeros up to the next multiple of kSlotAlignmentBytes.
struct SlotPlan {
  std::size_t parameter = 0;  ///< Index into the parameters that were planned.
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

/// Consecutive slots that are reduced by one operation: [begin, begin + numel) of the flat buffer.
struct BucketPlan {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::vector<SlotPlan> slots;

  std::int64_t bytes() const;
};

/// The size of the flat buffer of one dtype. It does not depend on the order of the parameters.
struct FlatPlan {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::int64_t numel = 0;
};

struct Plan {
  std::vector<BucketPlan> buckets;  ///< In the order in which they are reduced.
  std::vector<FlatPlan> flats;      ///< One for each dtype, in order of first appearance.
};

/// Each gradient carries two flags with it through the reduction: a rank used it, a rank missed it.
inline constexpr std::int64_t kFlagsPerSlot = 2;
/// A cache line: kernels start aligned, and no two gradients share a line.
inline constexpr std::int64_t kSlotAlignmentBytes = 64;

/// Puts the parameters into buckets in the given `order` (a permutation of their indices, earliest
/// gradient first). Buckets hold one dtype each and come out in the order in which the last of
/// their parameters appears in `order`. Errors: kInternal when `order` is no permutation.
Plan plan_buckets(std::span<const PlanParameter> parameters, std::span<const std::size_t> order,
                  BucketLimits limits);

/// The order to start with: backward reaches the parameters in about the reverse of registration.
std::vector<std::size_t> reverse_order(std::size_t count);

}  // namespace convoy::ddp
