// checkpoint_units: units of a type checkpointed without a change to the model.
#include "convoy/fsdp/unit.h"

#include "recompute/segments.h"
#include "support/catch.h"

#include <memory>
#include <tuple>

namespace convoy::test {
namespace {

struct CountedImpl : torch::nn::Module {
  CountedImpl() : layer(register_module("layer", torch::nn::Linear(8, 8))) {}
  std::tuple<torch::Tensor, int> forward(const torch::Tensor& x, double scale) {
    ++calls;
    return {torch::tanh(layer(torch::dropout(x, 0.2, is_training()))) * scale, 3};
  }
  torch::nn::Linear layer;
  int calls = 0;
};
using Counted = Unit<CountedImpl>;

struct WriterImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor& x) { return x.sin(); }
};
using Writer = Unit<WriterImpl>;

struct OverloadedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x.sin(); }
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) { return x * y; }
};
using Overloaded = Unit<OverloadedImpl, any_forward>;

struct ConstImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) const { return x.cos(); }
};
using Const = Unit<ConstImpl>;

struct ModelImpl : torch::nn::Module {
  ModelImpl()
      : first(register_module("first", Counted())),
        second(register_module("second", Counted())),
        overloaded(register_module("overloaded", Overloaded())),
        last(register_module("last", Const())) {}
  torch::Tensor forward(torch::Tensor x) {
    x = std::get<0>(first(x, 2.0));
    x = std::get<0>(second(x, 0.5));
    return last(overloaded(x, overloaded(x)));
  }
  Counted first, second;
  Overloaded overloaded;
  Const last;
};

Traces train(bool checkpoints) {
  torch::manual_seed(9);
  auto model = std::make_shared<ModelImpl>();
  if (checkpoints) {
    REQUIRE(checkpoint_units(*model, wrap_units_of<Counted>()) == 2);
    REQUIRE(checkpoint_units(*model, wrap_units_of<Overloaded>() | wrap_units_of<Const>()) == 2);
  }
  Traces traces;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    model->first->calls = 0;
    auto x = rows_of(step).requires_grad_();
    const auto loss = model->forward(x).square().mean();
    loss.backward();
    REQUIRE(model->first->calls == (checkpoints ? 2 : 1));
    traces.emplace_back("loss", loss.detach());
    traces.emplace_back("gradient of the input", x.grad());
    trace_gradients(traces, *model);
  }
  const torch::NoGradGuard no_grad;
  model->eval();
  model->first->calls = 0;
  traces.emplace_back("evaluation", model->forward(rows_of(1)));
  REQUIRE(model->first->calls == 1);
  traces.emplace_back("generator", generator_state());
  return traces;
}

}  // namespace

TEST_CASE("checkpointed units give the bits of plain ones") {
  check_same_traces(train(true), train(false));
}

TEST_CASE("checkpoint_units: a policy that matches nothing and a unit that cannot run again") {
  auto model = std::make_shared<ModelImpl>();
  check_throws(ErrorKind::kInvalidArgument,
               "checkpoint_units: ", [&] { checkpoint_units(*model, wrap_units_of<Writer>()); });
  Writer writer;
  checkpoint_units(writer, wrap_every_unit());
  auto x = rows_of(1).requires_grad_();
  check_throws(ErrorKind::kMisuse, "Leave this unit out", [&] { (void)writer(x); });
  const torch::NoGradGuard no_grad;
  check_same_bits(writer(x), x.sin(), "without gradients it runs");
}

TEST_CASE("a checkpointed unit lives until its backward") {
  Counted unit;
  checkpoint_units(unit, wrap_every_unit());
  const std::weak_ptr<torch::nn::Module> watch = unit.ptr();
  auto x = rows_of(1).requires_grad_();
  auto y = std::get<0>(unit(x, 1.0));
  unit = Counted(nullptr);
  REQUIRE_FALSE(watch.expired());
  y.sum().backward();
  CHECK(x.grad().abs().sum().item<float>() > 0);
  y.reset();
  CHECK(watch.expired());
}

}  // namespace convoy::test
