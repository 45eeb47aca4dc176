// One bucket: gradients that lie end to end and are averaged over the ranks by one operation.
#pragma once

#include "convoy/comm/communicator.h"
#include "ddp/bucket_plan.h"
#include "ddp/parameter.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::ddp {

/// Shares of the ranks, 0 to 1, as found after the reduction. A rank for which the gradient was
/// neither used nor missed (its graph delivered an undefined one) counts in none of them.
struct Usage {
  double used = 0;
  double missed = 0;
};

/// The place of one gradient in its bucket. Not thread-safe.
class GradientSlot {
 public:
  /// `flat` is the buffer of the plan's dtype.
  GradientSlot(const SlotPlan& plan, const Parameter& parameter, const at::Tensor& flat);

  std::size_t parameter() const noexcept { return parameter_; }
  /// True if `grad` is this place seen with the parameter's geometry.
  bool holds(const at::Tensor& grad) const;
  /// Makes `grad` a view of this place, with its values copied here if they are not here yet.
  /// Errors: kInvalidArgument (sparse, other dtype or shape), naming the parameter.
  void adopt(at::Tensor& grad) const;
  /// The values of `grad`, 1-D in the order of their places here; undefined where they do not lie
  /// in memory in that order. Errors as adopt.
  at::Tensor flat(const at::Tensor& grad) const;
  /// Copies the values of `grad` here and leaves it as it is; an undefined one counts as zeros.
  void copy_from(const at::Tensor& grad) const;
  /// A tensor over this place, fresh each time: what users do to it does not touch the slot.
  at::Tensor view() const;

  void write_usage(bool used, bool missed) const;
  Usage read_usage() const;

 private:
  void require_fits(const at::Tensor& grad) const;

  std::size_t parameter_;
  std::string name_;
  at::Tensor view_;   ///< Sizes and strides of the parameter. Never handed out.
  at::Tensor flags_;  ///< [kFlagsPerSlot]
  const void* data_;
};

enum class BucketState {
  kFilling,   ///< Gradients are being written; no peer reads them.
  kLaunched,  ///< The reduction is in flight; nobody may write.
  kReopened,  ///< Reduced once in this backward, and more is being added: to be reduced again.
};

/// Note [Gradients that stay]
/// Of each bucket one part is read by this rank alone, because it does the sums there (own_part).
/// Gradients are not copied into that part: the reduction reads them where backward left them, and
/// lets go of them when it is complete. It writes the means into the bucket as it does everywhere.
/// Not thread-safe.
class Bucket {
 public:
  Bucket(const BucketPlan& plan, std::size_t index, std::span<const Parameter> parameters,
         const at::Tensor& flat, Communicator& communicator);

  const std::vector<GradientSlot>& slots() const noexcept { return slots_; }
  /// "bucket 2 (blocks.3.up.weight ..)": its index and first parameter.
  const std::string& name() const noexcept { return name_; }
  BucketState state() const noexcept { return state_; }
  std::int64_t bytes() const noexcept;

  /// Starts a backward: all slots are awaited.
  void rearm();
  /// The gradient of a slot has arrived and will be reduced in this backward: its values go where
  /// the reduction finds them. `grad` must stay as it is until settle_gradient. Errors as adopt.
  void take(std::size_t slot, at::Tensor& grad);
  /// Before launch: makes `grad` a view of the slot if it was left where it was.
  /// Copies it first where it has been written to since take, or replaced.
  void settle_gradient(std::size_t slot, at::Tensor& grad);
  /// One slot of this backward is complete.
  void count_ready();
  bool is_ready() const noexcept { return awaited_ == 0; }

  /// Starts averaging. The gradients and their usage have been written.
  void launch(Communicator& communicator, std::string tag);
  /// Waits for the reduction that is in flight.
  void finish();
  /// Waits for the reduction, then lets more be added to its result.
  void reopen();

 private:
  void enter(BucketState to);

  /// Of one slot; see Note [Gradients that stay].
  struct Stay {
    std::int64_t begin = 0;     ///< Of the slot, in the bucket.
    OwnPiece piece = {};        ///< Own values in the gradient itself, if any are left there.
    std::uint32_t version = 0;  ///< Of that gradient when it was taken.
  };

  std::vector<GradientSlot> slots_;
  std::vector<Stay> stays_;  ///< By slot.
  ElementRange own_;         ///< What this rank alone reads.
  at::Tensor data_;
  std::string name_;
  BucketState state_ = BucketState::kFilling;
  std::size_t awaited_ = 0;
  WorkPtr work_;
};

}  // namespace convoy::ddp
