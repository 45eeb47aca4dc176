// Copies around the part that stays.
#include "convoy/comm/own_values.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace convoy {

OwnPiece copy_but_own(const at::Tensor& target, std::int64_t begin, const at::Tensor& values,
                      ElementRange own) {
  const at::NoGradGuard no_grad;
  const std::int64_t end = begin + values.numel();
  const std::int64_t own_begin = std::clamp(own.begin, begin, end);
  const std::int64_t own_end = std::clamp(own.end, own_begin, end);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return values.narrow(0, from - begin, to - from);
  };
  const auto copy = [&](std::int64_t from, std::int64_t to) {
    if (from < to) target.narrow(0, from, to - from).copy_(part(from, to));
  };
  copy(begin, own_begin);
  copy(own_end, end);
  if (own_begin == own_end) return {};
  return {own_begin, part(own_begin, own_end)};
}

bool is_sole_holder(const at::Tensor& values) {
  if (values.use_count() != 1 || !values.has_storage()) return false;
  const auto tensors = values.storage().use_count();
  if (tensors == 1) return true;
  return tensors == 2 && values.is_view() && values._base().use_count() == 1 &&
         values._base().is_alias_of(values);
}

}  // namespace convoy
