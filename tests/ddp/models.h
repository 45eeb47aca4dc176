// Small models and data for the DDP tests. Values differ by rank, step and element.
#pragma once

#include "convoy/comm/run_ranks.h"

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>

namespace convoy::test {

/// For tests in which waiting for ever is what could go wrong.
inline const CommunicatorOptions kShort{.timeout = std::chrono::seconds(60)};

inline std::uint64_t all_reduces(const Rank& rank) {
  return rank.comm().stats()[OpKind::kAllReduce].calls;
}

/// Odd sizes, a parameter without elements, a scalar and a layer used twice are
/// what buckets must cope with. Input [batch, 5], output [batch, 3].
class OddNetImpl : public torch::nn::Module {
 public:
  OddNetImpl()
      : empty_(register_parameter("empty", torch::zeros({0, 4}))),
        first_(register_module("first", torch::nn::Linear(5, 13))),
        middle_(register_module("middle", torch::nn::Linear(13, 13))),
        scale_(register_parameter("scale", torch::tensor(1.25))),
        last_(register_module("last", torch::nn::Linear(13, 3))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first_(x));
    // middle_ is used twice: one parameter, one gradient that is the sum of two.
    x = torch::tanh(middle_(torch::tanh(middle_(x))) * scale_);
    return last_(x) + empty_.sum();
  }

 private:
  torch::Tensor empty_;
  torch::nn::Linear first_, middle_;
  torch::Tensor scale_;
  torch::nn::Linear last_;
};
TORCH_MODULE(OddNet);

/// Throws in backward when told to.
class TripImpl : public torch::nn::Module {
 public:
  TripImpl()
      : first_(register_module("first", torch::nn::Linear(5, 7))),
        last_(register_module("last", torch::nn::Linear(7, 3))) {}
  torch::Tensor forward(const torch::Tensor& x, bool trips) {
    auto middle = first_(x);
    if (trips) {
      middle.register_hook([](const torch::Tensor&) { throw std::runtime_error("tripped"); });
    }
    return last_(middle);
  }

 private:
  torch::nn::Linear first_, last_;
};
TORCH_MODULE(Trip);

/// Rank `rank`'s batch of step `step`: [3, width] float32, the same in every process.
inline torch::Tensor batch_of(int rank, int step, std::int64_t width) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(7919 * step + 104729 * rank + 1));
  return at::randn({3, width}, generator, at::kFloat);
}

/// The same, and its gradient is wanted.
inline torch::Tensor input_of(int rank, int step) {
  return batch_of(rank, step, 5).requires_grad_();
}

/// A loss of unevenly weighted outputs, so that no two gradients agree by accident.
inline torch::Tensor loss_of(const torch::Tensor& output, int rank, int step) {
  const auto weights =
      torch::arange(1, output.numel() + 1, torch::kFloat).view(output.sizes()) / output.numel();
  return (output * output * weights).sum() * (0.5 + rank) + output.sum() * (0.1 * step);
}

/// What `make` returns under one seed: the same on every rank and in every process.
template <class Make>
auto under_seed(std::uint64_t seed, const Make& make) {
  static std::mutex mutex;  // torch's default generator is one for all threads
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return make();
}

template <class Holder>
Holder seeded(std::uint64_t seed = 3) {
  return under_seed(seed, [] { return Holder(); });
}

}  // namespace convoy::test
