// Hooks on the parameters' gradient accumulators, held as long as they are needed.
#include "ddp/gradient_hooks.h"

#include "convoy/base/check.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>

namespace convoy::ddp {
namespace {

using torch::autograd::variable_list;

class BeforeHook final : public torch::autograd::FunctionPreHook {
 public:
  BeforeHook(GradientListener& listener, std::size_t parameter)
      : listener_(listener), parameter_(parameter) {}
  variable_list operator()(const variable_list& grads) override {
    if (!grads.empty() && grads.front().defined()) listener_.before_accumulate(parameter_);
    return grads;
  }

 private:
  GradientListener& listener_;
  std::size_t parameter_;
};

class AfterHook final : public torch::autograd::FunctionPostHook {
 public:
  AfterHook(GradientListener& listener, std::size_t parameter)
      : listener_(listener), parameter_(parameter) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    listener_.after_accumulate(parameter_, !inputs.empty() && inputs.front().defined());
    return outputs;
  }

 private:
  GradientListener& listener_;
  std::size_t parameter_;
};

}  // namespace

GradientHooks::GradientHooks(std::span<const Parameter> parameters, GradientListener& listener) {
  hooked_.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    NodePtr accumulator = torch::autograd::impl::grad_accumulator(parameters[i].tensor);
    for (const auto& hook : accumulator->post_hooks()) {
      if (dynamic_cast<const AfterHook*>(hook.get()) == nullptr) continue;
      remove_all();
      throw Error(ErrorKind::kMisuse,
                  concat("DistributedDataParallel: parameter ", parameters[i].name,
                         " already belongs to another wrapper; destroy that one first"));
    }
    Hooked hooked{.accumulator = accumulator, .before = nullptr, .after = 0};
    auto before = std::make_unique<BeforeHook>(listener, i);
    hooked.before = before.get();
    accumulator->add_pre_hook(std::move(before));
    hooked.after = accumulator->add_post_hook(std::make_unique<AfterHook>(listener, i));
    hooked_.push_back(std::move(hooked));
  }
}

GradientHooks::~GradientHooks() { remove_all(); }

bool GradientHooks::is_current(std::size_t parameter, const at::Tensor& tensor) const {
  return torch::autograd::impl::try_get_grad_accumulator(tensor).get() ==
         hooked_[parameter].accumulator.get();
}

void GradientHooks::remove_all() noexcept {
  while (!hooked_.empty()) {
    const Hooked& hooked = hooked_.back();
    hooked.accumulator->del_post_hook(hooked.after);
    auto& before = hooked.accumulator->pre_hooks();
    before.erase(std::remove_if(before.begin(), before.end(),
                                [&](const auto& hook) { return hook.get() == hooked.before; }),
                 before.end());
    hooked_.pop_back();
  }
}

}  // namespace convoy::ddp
