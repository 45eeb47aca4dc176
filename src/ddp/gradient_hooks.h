// Hooks on the parameters' gradient accumulators, held as long as they are needed.
#pragma once

#include "ddp/parameter.h"

#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace convoy::ddp {

/// Called by the autograd engine, in the thread that runs backward. May throw: backward then ends
/// with that exception.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// A gradient, not an undefined one, is about to be added to the parameter's .grad.
  virtual void before_accumulate(std::size_t parameter) = 0;
  /// It has been added; `defined` is false if the graph delivered an undefined gradient.
  virtual void after_accumulate(std::size_t parameter, bool defined) = 0;
};

/// Holds the accumulators of all parameters with one hook before and one after each; removes them,
/// last first, when destroyed. An accumulator that nobody holds is made anew by autograd and would
/// lose its hooks.
class GradientHooks {
 public:
  /// `listener` outlives this. Errors: kMisuse naming a parameter that another wrapper hooks.
  GradientHooks(std::span<const Parameter> parameters, GradientListener& listener);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// True if autograd still uses the accumulator that is hooked (a change of dtype replaces it).
  bool is_current(std::size_t parameter, const at::Tensor& tensor) const;

 private:
  // libtorch 2.15 counts nodes intrusively, earlier ones use shared_ptr.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor&>()));
  struct Hooked {
    NodePtr accumulator;
    const void* before = nullptr;
    std::uintptr_t after = 0;
  };
  void remove_all() noexcept;

  std::vector<Hooked> hooked_;
};

}  // namespace convoy::ddp
