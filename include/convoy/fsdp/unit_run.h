// One run of a unit: gathers, calls what is to run, finds the outputs, gives up. For forward and
// for other methods.
#pragma once

#include "convoy/base/check.h"
#include "convoy/fsdp/cast_tensors.h"
#include "convoy/fsdp/output_tensors.h"
#include "convoy/fsdp/unit_behaviour.h"

#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::fsdp {

namespace detail {

/// Calls `body()` as one run of the unit, or plainly where nothing has wrapped it.
template <typename Body>
decltype(auto) run_unit(const UnitBase& unit, bool trains, const Body& body) {
  using Result = decltype(body());
  // Held here, so that a module destroyed or rewrapped inside its own forward ends the run well.
  const std::shared_ptr<UnitBehaviour> behaviour = unit.convoy_unit_behaviour();
  if (!behaviour) return body();
  const std::unique_ptr<ForwardScope> scope = behaviour->enter_forward(trains);
  std::vector<at::Tensor> outputs;
  if constexpr (std::is_void_v<Result>) {
    body();
    scope->finish(outputs);
  } else {
    Result result = body();
    collect_tensors(result, outputs);
    scope->finish(outputs);
    if constexpr (!std::is_reference_v<Result>) {
      if (const auto dtype = behaviour->casts().outputs) cast_in_place(result, *dtype);
    }
    return static_cast<Result>(std::forward<Result>(result));
  }
}

template <typename Target>
const torch::nn::Module& module_of(const Target& target) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Target>) {
    return target;
  } else {
    return *target;  // a holder or a pointer
  }
}

}  // namespace detail

/// Runs `body()` as if it were the forward of `unit` (a Unit, its module, or a pointer to it), so
/// that methods other than forward find whole parameters:
///
///     auto ids = convoy::run_as_unit(model, [&] { return model->generate(prompt, 100); });
///
/// What holds of forward holds of `body`: what it returns must hold every tensor that leaves the
/// unit with a graph, all ranks run it alike where gathers are private, and with a graph and in
/// training mode it counts as a forward. Mixed precision casts its results, not its arguments.
/// Without a wrapper it is called as it is. Error: kInvalidArgument for a module that is no Unit.
template <typename Target, typename Body>
decltype(auto) run_as_unit(const Target& unit, const Body& body) {
  const torch::nn::Module& module = detail::module_of(unit);
  const auto* base = dynamic_cast<const UnitBase*>(&module);
  CONVOY_REQUIRE(base != nullptr, kInvalidArgument, "run_as_unit: module '", module.name(),
                 "' is not a convoy::Unit; write `using X = convoy::Unit<XImpl>;`");
  return detail::run_unit(*base, module.is_training(), body);
}

}  // namespace convoy::fsdp

namespace convoy {
using fsdp::run_as_unit;
}  // namespace convoy
