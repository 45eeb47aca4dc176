// Finds the tensors in what a module's forward returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

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

/// Calls `visit` for each tensor in a tensor, optional, pair, tuple, range, map or
/// torch::OrderedDict, nested to any depth. Other types hold none that could be found; that is
/// allowed.
template <class T, class Visit>
void for_each_tensor(const T& value, Visit&& visit) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    visit(value);
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
