// Finds the tensors in what a module's forward returned.
#pragma once

#include "convoy/recompute/tensor_slots.h"

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::detail {

template <class T>
concept TupleLike = requires {
  std::tuple_size<std::remove_cvref_t<T>>::value;
};

template <class T>
concept RangeLike = requires(const T& value) {
  value.begin();
  value.end();
};

/// A type of the user's own that says where its tensors are: found by argument-dependent lookup as
/// append_tensors(const T&, std::vector<at::Tensor>&).
template <class T>
concept NamesItsTensors = requires(const T& value, std::vector<at::Tensor>& out) {
  append_tensors(value, out);
};

/// Calls `visit` for each tensor in a tensor, optional, pair, tuple, range, map, OrderedDict, or
/// type that defines append_tensors or visit_tensors (recompute/tensor_slots.h), nested to any
/// depth. Other types hold none that could be found; that is allowed.
template <class T, class Visit>
void for_each_tensor(const T& value, Visit&& visit) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    visit(value);
  } else if constexpr (NamesItsTensors<T>) {
    std::vector<at::Tensor> tensors;
    append_tensors(value, tensors);
    for (const at::Tensor& tensor : tensors) visit(tensor);
  } else if constexpr (recompute::detail::ShowsItsSlots<T>) {
    // The hook lets tensors be replaced; here none is.
    visit_tensors(const_cast<T&>(value), [&](at::Tensor& tensor) { visit(std::as_const(tensor)); });
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
  } else if constexpr (requires { value.key(), value.value(); }) {
    for_each_tensor(value.value(), visit);
  } else if constexpr (RangeLike<T> && !std::is_convertible_v<T, std::string_view>) {
    for (const auto& part : value) for_each_tensor(part, visit);
  }
}

}  // namespace convoy::detail
