// A few full-size gradient buffers that the units of a model take turns with.
#pragma once

#include "convoy/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace convoy::fsdp {

class GradBufferPool;

/// A buffer on loan; gives it back when destroyed. Moved, not copied.
class GradBufferLease {
 public:
  GradBufferLease() = default;
  GradBufferLease(std::shared_ptr<GradBufferPool> pool, at::Tensor whole, at::Tensor used,
                  ElementRange own)
      : pool_(std::move(pool)), whole_(std::move(whole)), used_(std::move(used)), own_(own) {}
  ~GradBufferLease() { give_back(); }
  GradBufferLease(GradBufferLease&& other) noexcept { *this = std::move(other); }
  GradBufferLease& operator=(GradBufferLease&& other) noexcept {
    give_back();
    pool_ = std::move(other.pool_);
    whole_ = std::move(other.whole_);
    used_ = std::move(other.used_);
    own_ = other.own_;
    return *this;
  }

  explicit operator bool() const noexcept { return used_.defined(); }
  /// 1-D, of the length asked for; holds anything.
  const at::Tensor& tensor() const noexcept { return used_; }
  /// The elements that only this rank reads when the buffer is reduced: see Communicator::own_part.
  ElementRange own() const noexcept { return own_; }

 private:
  void give_back() noexcept;

  std::shared_ptr<GradBufferPool> pool_;
  at::Tensor whole_;
  at::Tensor used_;
  ElementRange own_;
};

/// Bounded memory for gradients on their way: made once, in memory the communicator moves without
/// staging. When all are out, a plain buffer is made (it is staged, and freed when given back).
/// Thread rule: the thread that runs backward.
class GradBufferPool : public std::enable_shared_from_this<GradBufferPool> {
 public:
  /// Collective: one buffer for each entry of `numels`. `comm` outlives the pool. `leaves_own` lets
  /// leases name what only this rank reads, which need not be copied into them.
  GradBufferPool(Communicator& comm, const std::vector<std::int64_t>& numels, at::ScalarType dtype,
                 bool leaves_own);

  /// The smallest free buffer of at least `numel` elements, or an empty lease.
  GradBufferLease try_take(std::int64_t numel);
  /// A plain buffer outside of the pool.
  GradBufferLease take_plain(std::int64_t numel);
  /// Called by leases.
  void give_back(at::Tensor whole) noexcept;

  std::int64_t bytes() const noexcept { return bytes_; }
  at::ScalarType dtype() const noexcept { return dtype_; }

 private:
  Communicator& comm_;
  at::ScalarType dtype_;
  bool leaves_own_;
  std::int64_t bytes_ = 0;
  std::vector<at::Tensor> free_;
};

/// How many elements the pool's buffers should have, for units of these sizes (0 for units that
/// never have gradients). The root and every unit around others fill theirs during most of the
/// backward, so each gets its own; the others take `turns`: one filling, one being reduced,
/// a third for the peers to be late.
std::vector<std::int64_t> plan_grad_buffers(const std::vector<std::int64_t>& unit_numels,
                                            const std::vector<bool>& fills_long, std::size_t turns);

/// With private gathers, where memory is what counts, one fewer: a late peer makes this rank wait.
inline std::size_t grad_buffer_turns(bool shared_gather) { return shared_gather ? 3 : 2; }

/// With private gathers every gradient is copied into its buffer and let go of: one that stayed
/// until its unit is reduced would be held beside the place that is kept for it.
inline bool leaves_own_gradients(bool shared_gather) { return shared_gather; }

}  // namespace convoy::fsdp
