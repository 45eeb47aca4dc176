// States of torch's default random generators.
#include "recompute/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>

namespace convoy::recompute {
namespace {

at::Tensor state_of(const at::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

RandomState RandomState::of(const std::vector<at::Device>& devices) {
  RandomState state;
  for (const at::Device& device : devices) state.states_.emplace_back(device, state_of(device));
  return state;
}

RandomState RandomState::now() const {
  RandomState state;
  for (const auto& entry : states_) state.states_.emplace_back(entry.first, state_of(entry.first));
  return state;
}

void RandomState::restore() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool RandomState::equals(const RandomState& other) const {
  return std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const auto& left, const auto& right) {
                      return left.first == right.first && at::equal(left.second, right.second);
                    });
}

std::vector<at::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  for (const at::Tensor& tensor : tensors) {
    const at::Device device = tensor.device();
    if (device.is_meta()) continue;  // Has no generator.
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
      devices.push_back(device);
    }
  }
  return devices;
}

}  // namespace convoy::recompute
