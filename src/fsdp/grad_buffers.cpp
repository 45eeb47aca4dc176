// Lends buffers by best fit.
#include "grad_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace convoy::fsdp {

void GradBufferLease::give_back() noexcept {
  if (pool_ && whole_.defined()) pool_->give_back(std::move(whole_));
  pool_.reset();
  whole_.reset();
  used_.reset();
}

GradBufferPool::GradBufferPool(Communicator& comm, const std::vector<std::int64_t>& numels,
                               at::ScalarType dtype, bool leaves_own)
    : comm_(comm), dtype_(dtype), leaves_own_(leaves_own) {
  free_.reserve(numels.size());
  for (const std::int64_t numel : numels) {
    free_.push_back(comm.allocate(numel, dtype, {.tag = "FSDP: gradient buffer"}));
    bytes_ += static_cast<std::int64_t>(free_.back().nbytes());
  }
}

GradBufferLease GradBufferPool::try_take(std::int64_t numel) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() >= numel && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best == free_.end()) return {};
  at::Tensor whole = std::move(*best);
  free_.erase(best);
  at::Tensor used = whole.narrow(0, 0, numel);
  const ElementRange own =
      leaves_own_ ? comm_.own_part(OpKind::kReduceScatter, used) : ElementRange{};
  return {shared_from_this(), std::move(whole), std::move(used), own};
}

GradBufferLease GradBufferPool::take_plain(std::int64_t numel) {
  return {nullptr, {}, at::empty({numel}, dtype_), {}};
}

void GradBufferPool::give_back(at::Tensor whole) noexcept { free_.push_back(std::move(whole)); }

std::vector<std::int64_t> plan_grad_buffers(const std::vector<std::int64_t>& unit_numels,
                                            const std::vector<bool>& fills_long,
                                            std::size_t turns) {
  std::vector<std::int64_t> numels, short_units;
  for (std::size_t i = 0; i < unit_numels.size(); ++i) {
    if (unit_numels[i] > 0) (fills_long[i] ? numels : short_units).push_back(unit_numels[i]);
  }
  if (!short_units.empty()) {
    const std::int64_t largest = *std::max_element(short_units.begin(), short_units.end());
    numels.insert(numels.end(), std::min(turns, short_units.size()), largest);
  }
  return numels;
}

}  // namespace convoy::fsdp
