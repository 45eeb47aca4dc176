// States of torch's default random generators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace convoy::recompute {

/// The states of the default generators of some devices at one moment. A generator is locked for
/// each reading and each writing, not in between.
class RandomState {
 public:
  static RandomState of(const std::vector<at::Device>& devices);
  /// The present states of the same generators.
  RandomState now() const;
  /// Puts the generators into these states.
  void restore() const;
  bool equals(const RandomState& other) const;

 private:
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

/// While it lives generators are in `state`; then they are again as it found them.
class RandomStateScope {
 public:
  explicit RandomStateScope(const RandomState& state) : before_(state.now()) { state.restore(); }
  ~RandomStateScope() { before_.restore(); }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState before_;
};

/// The CPU and the devices of `tensors`, each once.
std::vector<at::Device> devices_of(const std::vector<at::Tensor>& tensors);

}  // namespace convoy::recompute
