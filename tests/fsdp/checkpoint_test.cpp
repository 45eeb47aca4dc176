// Checkpoints: custom functions that run forward again inside backward, around and inside units.
#include "stack_runs.h"
#include "support/catch.h"

namespace convoy {

using namespace test;

TEST_CASE("C041: two forwards with checkpoints, then two backwards, or one of the sum") {
  const Body body = [](StackImpl& self, torch::Tensor x) {
    for (auto& layer : self.layers) {
      x = checkpoint([&layer](torch::Tensor y) { return layer(y); }, x);
    }
    return x;
  };
  for (const bool one_backward : {true, false}) {
    compare_runs(
        [&](Stack& model, int rank, int step) {
          model->body = body;
          const auto first = model(stack_input(rank, step).requires_grad_(true)).square().mean();
          const auto second =
              model(stack_input(rank, step + 50).requires_grad_(true)).square().mean();
          if (one_backward) return (first + second).backward();
          first.backward();
          second.backward();
        },
        2, 1e-6);
  }
}

TEST_CASE("a unit in a checkpoint, and all units in one") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    for (auto& layer : self.layers) {
      x = checkpoint([&layer](torch::Tensor y) { return layer(y); }, x);
    }
    return x;
  });
  compare_body([](StackImpl& self, torch::Tensor x) {
    return checkpoint(
        [&self](torch::Tensor y) {
          for (auto& layer : self.layers) y = layer(y);
          return y;
        },
        x);
  });
}

TEST_CASE("checkpoints nested in checkpoints, and a unit in two of them") {
  compare_body([](StackImpl& self, torch::Tensor x) {
    return checkpoint(
        [&self](torch::Tensor y) {
          y = self.layers[0](y);
          y = checkpoint([&self](torch::Tensor z) { return self.layers[1](z); }, y);
          return self.layers[2](y);
        },
        x);
  });
  compare_body(
      [](StackImpl& self, torch::Tensor x) {
        for (const int i : {0, 1, 0, 2}) {
          x = checkpoint([&self, i](torch::Tensor y) { return self.layers[std::size_t(i)](y); }, x);
        }
        return x;
      },
      1e-6, 3);
}

TEST_CASE("two checkpoints inside a unit") {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl()
        : a(register_module("a", torch::nn::Linear(6, 6))),
          b(register_module("b", torch::nn::Linear(6, 6))) {}
    torch::Tensor forward(torch::Tensor x) {
      x = checkpoint([this](torch::Tensor y) { return torch::tanh(a(y)); }, x);
      return checkpoint([this](torch::Tensor y) { return b(torch::tanh(a(y))); }, x);
    }
    torch::nn::Linear a, b;
  };
  struct RootImpl : torch::nn::Module {
    RootImpl()
        : one(register_module("one", Unit<TwiceImpl>())),
          two(register_module("two", Unit<TwiceImpl>())) {}
    torch::Tensor forward(torch::Tensor x) { return two(one(x)); }
    Unit<TwiceImpl> one, two;
  };
  auto training = training_of<Unit<RootImpl>>();
  training.loss = [](Unit<RootImpl>& model, int rank, int step) {
    return model(stack_input(rank, step).requires_grad_(true)).square().mean();
  };
  check_parity(training, 2);
}

}  // namespace convoy
