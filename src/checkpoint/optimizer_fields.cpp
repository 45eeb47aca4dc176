// torch's state types to fields and back.
#include "checkpoint/optimizer_fields.h"

#include "convoy/base/check.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace convoy::saving {
namespace {

template <class State>
OptimizerFields adam_fields(const torch::optim::OptimizerParamState& state) {
  const auto& own = static_cast<const State&>(state);
  return {own.step(), {own.exp_avg(), own.exp_avg_sq(), own.max_exp_avg_sq(), {}}};
}

template <class State>
std::unique_ptr<torch::optim::OptimizerParamState> adam_state(const OptimizerFields& fields) {
  auto state = std::make_unique<State>();
  state->step(fields.step);
  state->exp_avg(fields.tensors[0]);
  state->exp_avg_sq(fields.tensors[1]);
  state->max_exp_avg_sq(fields.tensors[kMaxExpAvgSq]);
  return state;
}

}  // namespace

OptimizerFamily family_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return OptimizerFamily::kAdamW;
  }
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) {
    return OptimizerFamily::kAdam;
  }
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return OptimizerFamily::kSgd;
  throw Error(ErrorKind::kInvalidArgument,
              "the state of this optimizer is not known; known are AdamW, Adam and SGD, of "
              "convoy::optim and torch::optim");
}

bool has_field(OptimizerFamily family, std::size_t field) {
  return (field == kMomentumBuffer) == (family == OptimizerFamily::kSgd);
}

bool needs_field(OptimizerFamily family, const torch::optim::OptimizerOptions& options,
                 std::size_t field) {
  if (!has_field(family, field) || field != kMaxExpAvgSq) return has_field(family, field);
  return family == OptimizerFamily::kAdamW
             ? static_cast<const torch::optim::AdamWOptions&>(options).amsgrad()
             : static_cast<const torch::optim::AdamOptions&>(options).amsgrad();
}

OptimizerFields fields_of(OptimizerFamily family, const torch::optim::OptimizerParamState& state) {
  switch (family) {
    case OptimizerFamily::kAdam: return adam_fields<torch::optim::AdamParamState>(state);
    case OptimizerFamily::kAdamW: return adam_fields<torch::optim::AdamWParamState>(state);
    case OptimizerFamily::kSgd: break;
  }
  return {0,
          {at::Tensor(), at::Tensor(), at::Tensor(),
           static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer()}};
}

std::unique_ptr<torch::optim::OptimizerParamState> make_state(OptimizerFamily family,
                                                              const OptimizerFields& fields) {
  switch (family) {
    case OptimizerFamily::kAdam: return adam_state<torch::optim::AdamParamState>(fields);
    case OptimizerFamily::kAdamW: return adam_state<torch::optim::AdamWParamState>(fields);
    case OptimizerFamily::kSgd: break;
  }
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(fields.tensors[kMomentumBuffer]);
  return state;
}

}  // namespace convoy::saving
