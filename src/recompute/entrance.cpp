// A function that passes its inputs through and keeps what comes back.
#include "recompute/entrance.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace convoy::recompute {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Caught : torch::CustomClassHolder {
  std::shared_ptr<std::vector<at::Tensor>> gradients;
};

class PassThrough : public torch::autograd::Function<PassThrough> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<Caught>& caught) {
    context->set_materialize_grads(false);
    context->saved_data["caught"] = c10::IValue::make_capsule(caught);
    variable_list outputs;
    for (const at::Tensor& input : inputs) outputs.push_back(input.detach());
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto caught = context->saved_data["caught"].toCapsule();
    const std::size_t count = gradients.size();
    *static_cast<Caught&>(*caught).gradients = std::move(gradients);
    return variable_list(count + 1);
  }
};

}  // namespace

Entrance enter(const std::vector<at::Tensor>& inputs, const std::vector<bool>& wants_gradient) {
  Entrance entrance;
  std::vector<at::Tensor> leaves;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    entrance.inputs.push_back(inputs[i].detach());
    if (!wants_gradient[i]) continue;
    leaves.push_back(inputs[i].detach().requires_grad_());
    places.push_back(i);
  }
  const auto caught = c10::make_intrusive<Caught>();
  caught->gradients = entrance.gradients = std::make_shared<std::vector<at::Tensor>>(leaves.size());
  if (leaves.empty()) return entrance;
  variable_list passed = PassThrough::apply(at::TensorList(leaves), caught);
  for (std::size_t i = 0; i < places.size(); ++i) {
    entrance.inputs[places[i]] = std::move(passed[i]);
  }
  return entrance;
}

}  // namespace convoy::recompute
