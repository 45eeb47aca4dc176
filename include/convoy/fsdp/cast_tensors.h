// Casts the floating-point tensors in the arguments and results of a forward.
#pragma once

#include "convoy/fsdp/output_tensors.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// `tensor` in `dtype`; itself if it is undefined, no floating-point tensor, or has that dtype.
/// Tracked by autograd.
at::Tensor cast_floating(const at::Tensor& tensor, at::ScalarType dtype);

namespace detail {

/// A type of the user's own that can be cast in place: found by argument-dependent lookup as
/// cast_tensors(T&, at::ScalarType). Not needed where the type defines visit_tensors.
template <typename T>
concept CastByUser = requires(T& value, at::ScalarType dtype) {
  cast_tensors(value, dtype);
};

template <typename T>
void cast_in_place(T& value, at::ScalarType dtype) {
  if constexpr (std::is_const_v<T>) {
    return;  // a key of a map, an element of a TensorList: not ours to change
  } else if constexpr (std::is_base_of_v<at::Tensor, T>) {
    static_cast<at::Tensor&>(value) = cast_floating(value, dtype);
  } else if constexpr (CastByUser<T>) {
    cast_tensors(value, dtype);
  } else if constexpr (recompute::detail::ShowsItsSlots<T>) {
    visit_tensors(value, [dtype](at::Tensor& tensor) { tensor = cast_floating(tensor, dtype); });
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... parts) { (cast_in_place(parts, dtype), ...); }, value);
  } else if constexpr (requires {
                         { value.has_value() } -> std::same_as<bool>;
                         *value;
                       }) {
    if (value.has_value()) cast_in_place(*value, dtype);
  } else if constexpr (requires {
                         value.key();
                         value.value();
                       }) {
    cast_in_place(value.value(), dtype);  // an item of torch::OrderedDict
  } else if constexpr (Range<T> && !std::is_convertible_v<const T&, std::string_view>) {
    using Element = decltype(*value.begin());
    if constexpr (std::is_lvalue_reference_v<Element>) {  // not the bits of a vector<bool>
      for (auto& part : value) cast_in_place(part, dtype);
    }
  }
}

/// True if cast_in_place may change anything in `value`. Of a type that says how it is cast, but
/// not what it holds, it cannot be known.
template <typename T>
bool needs_cast(const T& value, at::ScalarType dtype) {
  [[maybe_unused]] const auto any = [dtype](const auto& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [dtype](const auto& part) { return needs_cast(part, dtype); });
  };
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    return value.defined() && value.is_floating_point() && value.scalar_type() != dtype;
  } else if constexpr (TaughtByUser<T> || recompute::detail::ShowsItsSlots<T>) {
    std::vector<at::Tensor> tensors;
    collect_tensors(value, tensors);
    return any(tensors);
  } else if constexpr (CastByUser<T>) {
    return true;
  } else if constexpr (TupleLike<T>) {
    return std::apply([&](const auto&... parts) { return (needs_cast(parts, dtype) || ...); },
                      value);
  } else if constexpr (requires {
                         { value.has_value() } -> std::same_as<bool>;
                         *value;
                       }) {
    return value.has_value() && needs_cast(*value, dtype);
  } else if constexpr (requires {
                         value.key();
                         value.value();
                       }) {
    return needs_cast(value.value(), dtype);
  } else if constexpr (Range<T> && !std::is_convertible_v<const T&, std::string_view>) {
    return any(value);
  } else {
    return false;
  }
}

/// One argument on its way into a forward that was declared, or deduced, as `Argument` (T, T&,
/// const T& or T&&), cast if `dtype` says so. The caller's own objects are not changed: what was
/// given by reference is cast in a copy. `kKeepMutable` leaves T& alone, because a forward declared
/// with it may mean to write to the caller's object. Refers to what it is given.
template <typename Argument, bool kKeepMutable>
class CastArgument {
  using Given = std::remove_reference_t<Argument>;
  using Value = std::remove_const_t<Given>;
  static constexpr bool kIsOwn = !std::is_lvalue_reference_v<Argument> && !std::is_const_v<Given>;
  static constexpr bool kMayCopy =
      std::is_copy_constructible_v<Value> && (std::is_const_v<Given> || !kKeepMutable);

 public:
  CastArgument(Given& given, std::optional<at::ScalarType> dtype) : given_(&given) {
    if (!dtype) return;
    if constexpr (kIsOwn) {
      cast_in_place(given, *dtype);
    } else if constexpr (kMayCopy) {
      if (!needs_cast(given, *dtype)) return;
      copy_.emplace(given);
      cast_in_place(*copy_, *dtype);
    }
  }

  Argument&& get() {
    if constexpr (!kIsOwn && kMayCopy) {
      if (copy_) return static_cast<Argument&&>(*copy_);
    }
    return static_cast<Argument&&>(*given_);
  }

 private:
  struct Nothing {};
  Given* given_;
  std::conditional_t<!kIsOwn && kMayCopy, std::optional<Value>, Nothing> copy_;
};

}  // namespace detail

}  // namespace convoy::fsdp
