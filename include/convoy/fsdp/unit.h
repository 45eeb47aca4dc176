// Unit<M>: the module M as a unit that FSDP can shard, and a plain pass-through without FSDP.
#pragma once

#include "convoy/base/check.h"
#include "convoy/fsdp/cast_tensors.h"
#include "convoy/fsdp/unit_behaviour.h"
#include "convoy/fsdp/unit_checkpoint.h"
#include "convoy/fsdp/unit_run.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace convoy::fsdp {

/// Forward with the one exact signature of M::forward (the default). Works with holder(x),
/// Sequential, AnyModule, brace arguments and FORWARD_HAS_DEFAULT_ARGS.
struct exact_forward {};
/// Forward for an M whose forward is overloaded or a template: takes anything M::forward takes. A
/// module of this kind cannot stand in Sequential or AnyModule, as any module with such a forward.
struct any_forward {};

namespace detail {

struct FromModule {};

/// A unit of M without its forward: runs it, and guards what a sharded module must not do.
template <typename M>
class UnitBody : public M, public UnitBase {
 public:
  static_assert(std::is_base_of_v<torch::nn::Module, M>, "Unit<M>: M is a torch::nn::Module");

  using M::M;
  UnitBody() = default;
  UnitBody(const UnitBody&) = delete;
  UnitBody& operator=(const UnitBody&) = delete;
  UnitBody(FromModule, M&& module) : M(std::move(module)) {}

  /// M's name, not this template's, so that printing a model shows what the user wrote.
  const std::string& name() const noexcept {
    static const std::string kMine = c10::demangle(typeid(M).name());
    const std::string& given = torch::nn::Module::name();
    return given == c10::demangle(typeid(*this).name()) ? kMine : given;
  }

  void pretty_print(std::ostream& stream) const override {
    using Inherited = void (torch::nn::Module::*)(std::ostream&) const;
    if constexpr (std::is_same_v<decltype(&M::pretty_print), Inherited>) {
      stream << name();
    } else {
      M::pretty_print(stream);
    }
  }

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    refuse_if_sharded("to(device, dtype)");
    M::to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    refuse_if_sharded("to(dtype)");
    M::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    refuse_if_sharded("to(device)");
    M::to(device, non_blocking);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    refuse_if_sharded("torch::save");
    M::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    refuse_if_sharded("torch::load");
    M::load(archive);
  }

 protected:
  void refuse_if_sharded(const char* operation) const {
    if (const auto& behaviour = this->convoy_unit_behaviour()) behaviour->refuse(operation);
  }

  /// To which dtype a forward's arguments are cast; before its run begins, so that the casts are no
  /// part of the unit's graph and their backward does not keep the unit full.
  std::optional<at::ScalarType> convoy_input_dtype() const {
    const auto& behaviour = this->convoy_unit_behaviour();
    return behaviour ? behaviour->casts().inputs : std::nullopt;
  }

  /// Calls `forward()` as one run of the unit, or plainly where nothing has wrapped it.
  template <typename Forward>
  decltype(auto) run_as_unit(const Forward& forward) const {
    return run_unit(*this, static_cast<const torch::nn::Module&>(*this).is_training(), forward);
  }
};

/// Adds forward with the signature of `Signature`, a pointer to a member function.
template <typename M, typename Signature>
class UnitForward;

template <typename M, typename C, typename R, typename... Args>
class UnitForward<M, R (C::*)(Args...)> : public UnitBody<M> {
 public:
  using UnitBody<M>::UnitBody;
  R forward(Args... args) {
    const auto dtype = this->convoy_input_dtype();
    std::tuple<CastArgument<Args, true>...> casts(CastArgument<Args, true>(args, dtype)...);
    M& module = *this;  // g++ 12 cannot capture `this` in a generic lambda here
    const UnitBase& unit = *this;
    return this->run_as_unit([&]() -> R {
      return std::apply(
          [&](auto&... cast) -> R { return forward_of<M>(unit, module, cast.get()...); }, casts);
    });
  }
};

template <typename M, typename C, typename R, typename... Args>
class UnitForward<M, R (C::*)(Args...) const> : public UnitBody<M> {
 public:
  using UnitBody<M>::UnitBody;
  R forward(Args... args) const {
    const auto dtype = this->convoy_input_dtype();
    std::tuple<CastArgument<Args, true>...> casts(CastArgument<Args, true>(args, dtype)...);
    const M& module = *this;  // g++ 12 cannot capture `this` in a generic lambda here
    const UnitBase& unit = *this;
    return this->run_as_unit([&]() -> R {
      return std::apply(
          [&](auto&... cast) -> R { return forward_of<M>(unit, module, cast.get()...); }, casts);
    });
  }
};

template <typename M, typename C, typename R, typename... Args>
class UnitForward<M, R (C::*)(Args...) noexcept> : public UnitForward<M, R (C::*)(Args...)> {
 public:
  using UnitForward<M, R (C::*)(Args...)>::UnitForward;
};

template <typename M, typename C, typename R, typename... Args>
class UnitForward<M, R (C::*)(Args...) const noexcept>
    : public UnitForward<M, R (C::*)(Args...) const> {
 public:
  using UnitForward<M, R (C::*)(Args...) const>::UnitForward;
};

struct AnyArguments {};

template <typename M>
class UnitForward<M, AnyArguments> : public UnitBody<M> {
 public:
  using UnitBody<M>::UnitBody;
  template <typename... Args>
  auto forward(Args&&... args)
      -> decltype(std::declval<M&>().forward(std::forward<Args>(args)...)) {
    const auto dtype = this->convoy_input_dtype();
    std::tuple<CastArgument<Args&&, false>...> casts(CastArgument<Args&&, false>(args, dtype)...);
    return this->run_as_unit([&]() -> decltype(auto) {
      return std::apply(
          [&](auto&... cast) -> decltype(auto) {
            return forward_of<M>(*this, static_cast<M&>(*this), cast.get()...);
          },
          casts);
    });
  }
};

template <typename M>
concept OneForward = requires {
  &M::forward;
};

template <typename M, typename Forward>
consteval auto signature_of() {
  static_assert(!std::is_final_v<M>, "Unit<M>: M must not be final, the unit inherits from it");
  if constexpr (std::is_same_v<Forward, any_forward>) {
    return std::type_identity<AnyArguments>{};
  } else {
    static_assert(OneForward<M>,
                  "Unit<M>: M::forward is missing, not public, overloaded or a template; for the "
                  "last two write Unit<M, convoy::any_forward>");
    return std::type_identity<decltype(&M::forward)>{};
  }
}

}  // namespace detail

/// The module behind the holder Unit<M>: is an M, and found as a UnitBase by the wrappers.
template <typename M, typename Forward = exact_forward>
class UnitImpl
    : public detail::UnitForward<M, typename decltype(detail::signature_of<M, Forward>())::type> {
  using Base = detail::UnitForward<M, typename decltype(detail::signature_of<M, Forward>())::type>;

 public:
  using Base::Base;

  /// A deep copy that is a unit again. Error: kMisuse when sharded.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    this->refuse_if_sharded("clone()");
    const auto copy = std::dynamic_pointer_cast<M>(M::clone(device));
    if constexpr (std::is_move_constructible_v<M>) {
      CONVOY_CHECK(copy != nullptr, "clone() of ", this->name(), " made another type");
      return std::make_shared<UnitImpl>(detail::FromModule{}, std::move(*copy));
    } else {
      throw Error(ErrorKind::kInvalidArgument, "clone(): " + this->name() + " cannot be moved");
    }
  }
};

/// Holder of the unit of M, used as a holder made by TORCH_MODULE: `using Block =
/// convoy::Unit<BlockImpl>;`. The model runs as it is in one process and under
/// DistributedDataParallel; FullyShardedDataParallel shards it unit by unit. Parameter names do not
/// change.
/// Call the unit's own forward (through the holder, or `module->as<Block>()->forward(x)`): one
/// called through a pointer to M (`as<BlockImpl>()`) would not gather. What forward returns must
/// hold every tensor that leaves the unit with a graph (see output_tensors.h).
template <typename M, typename Forward = exact_forward>
class Unit : public torch::nn::ModuleHolder<UnitImpl<M, Forward>> {
 public:
  using torch::nn::ModuleHolder<UnitImpl<M, Forward>>::ModuleHolder;
  using torch::nn::ModuleHolder<UnitImpl<M, Forward>>::operator();
  using Impl [[maybe_unused]] = UnitImpl<M, Forward>;

  /// ModuleHolder's own operator() wants to name the one forward; here there are several.
  template <typename... Args>
  requires std::is_same_v<Forward, any_forward>
  decltype(auto) operator()(Args&&... args) {
    return this->ptr()->forward(std::forward<Args>(args)...);
  }
};

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::any_forward;
using fsdp::exact_forward;
using fsdp::Unit;
using fsdp::UnitImpl;
}  // namespace convoy
