// Finds the places of tensors inside values, so that other tensors can be put there.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace convoy::recompute {

/// What is called with each place.
using SlotVisitor = std::function<void(at::Tensor&)>;

namespace detail {

/// A type of the user's own that says where its tensors are: found by argument-dependent lookup as
/// visit_tensors(T&, const convoy::SlotVisitor&).
template <typename T>
concept ShowsItsSlots = requires(T& value, const SlotVisitor& visit) {
  visit_tensors(value, visit);
};

template <typename T>
concept OptionalLike = requires(T& value) {
  { value.has_value() } -> std::same_as<bool>;
  *value;
};

template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <typename T>
concept ItemLike = requires(T& value) {  // of torch::OrderedDict
  value.key();
  value.value();
};

template <typename T>
concept RangeLike = requires(T& value) {
  value.begin();
  value.end();
};

enum class Content {
  kPlain,    ///< No tensor, known.
  kTensors,  ///< Every tensor in it can be reached.
  kFixed,    ///< Holds tensors that cannot be replaced.
  kUnknown,  ///< A type that nobody has taught: may hold tensors.
};

constexpr Content worse(Content left, Content right) { return left < right ? right : left; }

template <typename T>
consteval Content content_of();

template <typename Tuple, std::size_t... I>
consteval Content content_of_parts(std::index_sequence<I...>) {
  Content content = Content::kPlain;
  ((content = worse(content, content_of<std::tuple_element_t<I, Tuple>>())), ...);
  return content;
}

template <typename T>
consteval Content content_of() {
  using Value = std::remove_cv_t<T>;
  if constexpr (std::is_base_of_v<at::Tensor, Value>) {
    return std::is_const_v<T> ? Content::kFixed : Content::kTensors;
  } else if constexpr (ShowsItsSlots<Value>) {
    return Content::kTensors;
  } else if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value> ||
                       std::is_convertible_v<const Value&, std::string_view>) {
    return Content::kPlain;
  } else if constexpr (OptionalLike<Value>) {
    return content_of<std::remove_reference_t<decltype(*std::declval<Value&>())>>();
  } else if constexpr (TupleLike<Value>) {
    return content_of_parts<Value>(std::make_index_sequence<std::tuple_size_v<Value>>());
  } else if constexpr (ItemLike<Value>) {
    return content_of<std::remove_reference_t<decltype(std::declval<Value&>().value())>>();
  } else if constexpr (RangeLike<Value>) {
    return content_of<std::remove_reference_t<decltype(*std::declval<Value&>().begin())>>();
  } else {
    return Content::kUnknown;
  }
}

}  // namespace detail

/// Calls `visit` for every place of a tensor inside `value`, defined or not, always in the same
/// order. Knows at::Tensor; optional, pair, tuple, array, vector, map and OrderedDict of what it
/// knows; and types that define `void visit_tensors(T&, const convoy::SlotVisitor&)` in their own
/// namespace. In other types it sees no tensors.
template <typename T>
void for_each_slot(T& value, const SlotVisitor& visit) {
  using detail::Content;
  constexpr Content kContent = detail::content_of<T>();
  if constexpr (kContent == Content::kPlain || std::is_const_v<T>) {
    return;
  } else if constexpr (std::is_base_of_v<at::Tensor, T>) {
    visit(value);
  } else if constexpr (detail::ShowsItsSlots<T>) {
    visit_tensors(value, visit);
  } else if constexpr (detail::OptionalLike<T>) {
    if (value.has_value()) for_each_slot(*value, visit);
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](auto&... parts) { (for_each_slot(parts, visit), ...); }, value);
  } else if constexpr (detail::ItemLike<T>) {
    for_each_slot(value.value(), visit);
  } else if constexpr (detail::RangeLike<T>) {
    for (auto&& part : value) for_each_slot(part, visit);
  }
}

}  // namespace convoy::recompute

namespace convoy {
using recompute::SlotVisitor;
}  // namespace convoy
