// What checkpoint() takes and returns, and that it gives the plain call's bits.
#include "recompute/segments.h"
#include "support/catch.h"

#include <array>
#include <map>
#include <optional>
#include <tuple>

namespace convoy::test {

/// A type of the user's own that shows its tensors.
struct Pair {
  torch::Tensor left, right;
  int count = 0;
};
inline void visit_tensors(Pair& pair, const SlotVisitor& visit) {
  visit(pair.left);
  visit(pair.right);
}

namespace {

/// Runs `body(x, w)` plainly and checkpointed: sums what it returns with weights, and compares.
template <typename Body>
void compare(const Body& body) {
  Traces traces[2];
  for (const bool checkpoints : {false, true}) {
    auto x = rows_of(1).requires_grad_();
    auto w = rows_of(2, 8, 8).requires_grad_();
    const auto h = x * 2;  // The inputs of a segment are mostly no leaves.
    std::vector<torch::Tensor> outputs = checkpoints ? body(true, h, w) : body(false, h, w);
    torch::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      traces[checkpoints].emplace_back("output", outputs[i].detach());
      if (outputs[i].is_floating_point())
        loss = loss + outputs[i].square().sum() * (0.5 + static_cast<double>(i));
    }
    loss.backward();
    traces[checkpoints].emplace_back("gradient of x", x.grad());
    traces[checkpoints].emplace_back("gradient of w", w.grad());
  }
  check_same_traces(traces[1], traces[0]);
}

template <typename Fn, typename... Inputs>
auto maybe(bool checkpoints, Fn fn, const Inputs&... inputs) {
  return checkpoints ? checkpoint(fn, inputs...) : fn(Inputs(inputs)...);
}

}  // namespace

TEST_CASE("inputs: tensors in any place and plain values") {
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, const torch::Tensor& weight, int power,
                       const std::string& name) {
      return torch::tanh(x.matmul(weight)).pow(power) + static_cast<double>(name.size());
    };
    return {maybe(on, fn, h, w, 2, std::string("abc"))};
  });
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    using Inputs = std::tuple<torch::Tensor, std::vector<torch::Tensor>, int>;
    const auto fn = [](Inputs inputs, std::optional<torch::Tensor> bias, torch::Tensor undefined,
                       std::optional<torch::Tensor> none) {
      check(!undefined.defined() && !none.has_value(), "empty places stay empty");
      const auto& [x, weights, times] = inputs;
      return x.matmul(weights.at(0)) * times + weights.at(1) + *bias;
    };
    return {maybe(on, fn, Inputs(h, {w, h.sin()}, 3), std::optional<torch::Tensor>(h.cos()),
                  torch::Tensor(), std::optional<torch::Tensor>())};
  });
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](std::map<std::string, torch::Tensor> named, Pair pair) {
      return named.at("x").matmul(pair.right) * pair.count + pair.left;
    };
    return {maybe(on, fn, std::map<std::string, torch::Tensor>{{"x", h}}, Pair{h.exp(), w, 2})};
  });
}

TEST_CASE("results: tuples and vectors and types that show their tensors") {
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, torch::Tensor weight) {
      const auto y = x.matmul(weight);
      return std::make_tuple(y.relu(), y.argmax(1), std::string("name"), y.detach().gt(0));
    };
    const auto [value, index, name, mask] = maybe(on, fn, h, w);
    check_equal(name, std::string("name"), "plain parts of a result");
    check(!index.requires_grad() && !mask.requires_grad(), "whole numbers need no gradient");
    return {value, index, mask};
  });
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, torch::Tensor weight) {
      return x.matmul(weight).tanh().chunk(2, 1);
    };
    auto chunks = maybe(on, fn, h, w);
    return {chunks[1]};  // One output without a gradient.
  });
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, torch::Tensor weight) {
      return Pair{x.sin(), x.matmul(weight), 4};
    };
    const Pair pair = maybe(on, fn, h, w);
    check_equal(pair.count, 4, "count");
    return {pair.left, pair.right};
  });
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, torch::Tensor weight) {
      return std::optional(
          std::array<torch::Tensor, 2>{x, x.matmul(weight)});  // An input as it is.
    };
    const auto both = maybe(on, fn, h, w);
    return {(*both)[0], (*both)[1]};
  });
}

TEST_CASE("results can be changed in place and views of inputs as well") {
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto fn = [](torch::Tensor x, torch::Tensor weight) {
      return x.matmul(weight).view({-1, 4}).transpose(0, 1);
    };
    auto y = maybe(on, fn, h, w);
    y.mul_(3).add_(1);
    return {y};
  });
}

TEST_CASE("checkpoints nested three deep") {
  compare([](bool on, const auto& h, const auto& w) -> std::vector<torch::Tensor> {
    const auto inner = [](torch::Tensor x, torch::Tensor weight) {
      return torch::tanh(x.matmul(weight));
    };
    const auto middle = [on, inner](torch::Tensor x, torch::Tensor weight) {
      return maybe(on, inner, x.sigmoid(), weight);
    };
    const auto outer = [on, middle](torch::Tensor x, torch::Tensor weight) {
      return maybe(on, middle, x + 1, weight).cos();
    };
    return {maybe(on, outer, h, w)};
  });
}

TEST_CASE("parameters get gradients when no input needs one") {
  torch::manual_seed(4);
  torch::nn::Linear layer(8, 8);
  auto y = checkpoint(layer, rows_of(6));
  REQUIRE(y.requires_grad());
  y.square().sum().backward();
  const auto weight = layer->weight.grad().clone();
  const auto bias = layer->bias.grad().clone();
  layer->zero_grad();
  layer(rows_of(6)).square().sum().backward();
  check_same_bits(weight, layer->weight.grad(), "weight");
  check_same_bits(bias, layer->bias.grad(), "bias");
  // A function of data alone has nothing to give.
  auto data = checkpoint([](torch::Tensor x) { return x * 2; }, rows_of(6));
  data.sum().backward();
  check_same_bits(data.detach(), rows_of(6) * 2, "data");
}

TEST_CASE("with gradients off it is a plain call") {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear layer(8, 8);
  const auto x = rows_of(6);
  const auto y = checkpoint(layer, x);
  CHECK_FALSE(y.requires_grad());
  check_same_bits(y, layer(x), "result");
}

TEST_CASE("the graph may be kept and used twice") {
  auto x = rows_of(1).requires_grad_();
  const auto y = checkpoint([](torch::Tensor each) { return each.exp(); }, x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  check_same_bits(x.grad(), once * 2, "gradient");
  CHECK_THROWS_AS(y.backward(), c10::Error);  // torch's own: "a second time"
}

TEST_CASE("function and inputs live as long as the graph and no longer") {
  struct Counted : torch::nn::Module {
    torch::Tensor forward(torch::Tensor x) { return x.sin(); }
  };
  auto module = std::make_shared<Counted>();
  const std::weak_ptr<Counted> watch = module;
  auto x = rows_of(1).requires_grad_();
  auto y = checkpoint([module](torch::Tensor each) { return module->forward(each); }, x);
  module.reset();
  REQUIRE_FALSE(watch.expired());
  y.sum().backward();
  check_same_bits(x.grad(), rows_of(1).cos(), "gradient");
  y.reset();
  CHECK(watch.expired());
}

}  // namespace convoy::test
