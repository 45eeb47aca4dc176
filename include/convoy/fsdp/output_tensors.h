// Finds the tensors in what a forward returns.
#pragma once

#include "convoy/recompute/tensor_slots.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::fsdp {

namespace detail {

template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <typename T>
concept Range = requires(const T& value) {
  value.begin();
  value.end();
};

/// A type of the user's own that says where its tensors are: found by argument-dependent lookup as
/// append_tensors(const T&, std::vector<at::Tensor>&).
template <typename T>
concept TaughtByUser = requires(const T& value, std::vector<at::Tensor>& out) {
  append_tensors(value, out);
};

}  // namespace detail

/// Appends every defined tensor inside `value` to `out`. Knows at::Tensor; optional, pair, tuple,
/// array, vector, map and OrderedDict of what it knows; and types that define
/// `void append_tensors(const T&, std::vector<at::Tensor>&)` in their own namespace, or
/// `void visit_tensors(T&, const convoy::SlotVisitor&)`, which also serves casts and checkpoints
/// (see recompute/tensor_slots.h). Anything else holds no tensors as far as FSDP can see; if it
/// does, the check after forward says so.
template <typename T>
void collect_tensors(const T& value, std::vector<at::Tensor>& out) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    if (value.defined()) out.push_back(value);
  } else if constexpr (detail::TaughtByUser<T>) {
    append_tensors(value, out);
  } else if constexpr (recompute::detail::ShowsItsSlots<T>) {
    // The hook lets tensors be replaced; here none is.
    visit_tensors(const_cast<T&>(value), [&out](at::Tensor& tensor) {
      if (tensor.defined()) out.push_back(tensor);
    });
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](const auto&... parts) { (collect_tensors(parts, out), ...); }, value);
  } else if constexpr (requires {
                         { value.has_value() } -> std::same_as<bool>;
                         *value;
                       }) {
    if (value.has_value()) collect_tensors(*value, out);
  } else if constexpr (requires {
                         value.key();
                         value.value();
                       }) {
    collect_tensors(value.value(), out);  // an item of torch::OrderedDict
  } else if constexpr (detail::Range<T> && !std::is_convertible_v<const T&, std::string_view>) {
    for (const auto& part : value) collect_tensors(part, out);
  }
}

}  // namespace convoy::fsdp
