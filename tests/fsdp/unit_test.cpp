// Unit<M> without FSDP: the same module, in every way libtorch lets modules be called.
#include "convoy/fsdp/unit.h"

#include "support/catch.h"
#include "support/check.h"
#include "support/tiny_gpt.h"

#include <torch/torch.h>

namespace convoy {
namespace {

using test::TinyBlock;
using test::TinyBlockImpl;
using test::TinyGpt;

struct AddImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, double by = 1.0, int times = 1) {
    for (int i = 0; i < times; ++i) x = x + by;
    return x;
  }
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(1.0)}, {2, torch::nn::AnyValue(1)})
};

struct PairImpl : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor x,
                                                   std::pair<double, double> by) const {
    return {x + by.first, x + by.second};
  }
};

struct OverloadedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x + 1; }
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) { return x + y; }
};

struct TemplatedImpl : torch::nn::Module {
  template <typename T>
  T forward(T x) {
    return x + x;
  }
};

struct QuietImpl : torch::nn::Module {
  void forward(int* calls) noexcept { ++*calls; }
};

struct CloneableImpl : torch::nn::Cloneable<CloneableImpl> {
  CloneableImpl() { CloneableImpl::reset(); }
  void reset() override {
    inner = register_module("inner", torch::nn::Linear(3, 3));
    scale = register_parameter("scale", torch::ones({3}));
  }
  torch::Tensor forward(torch::Tensor x) { return inner(x) * scale; }
  torch::nn::Linear inner{nullptr};
  torch::Tensor scale;
};

struct OwnPrintImpl : torch::nn::Module {
  void pretty_print(std::ostream& stream) const override { stream << "OwnPrint(7)"; }
  torch::Tensor forward(torch::Tensor x) { return x; }
};

template <typename Module>
std::string printed(const Module& module) {
  std::ostringstream out;
  out << *module;
  return out.str();
}

}  // namespace

TEST_CASE("a unit keeps parameter names and computes what its module computes") {
  TinyGpt model;
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  CHECK(std::find(names.begin(), names.end(), "blocks.0.norm_1.weight") != names.end());
  CHECK(std::find(names.begin(), names.end(), "token.weight") != names.end());

  TinyBlock unit(test::TinyGptConfig{});
  TinyBlockImpl plain(test::TinyGptConfig{});
  test::seed_parameters(*unit, 3);
  test::seed_parameters(plain, 3);
  const auto x = torch::randn({2, 7, 12});
  CHECK(test::same_bits(unit(x), plain.forward(x)));
  CHECK(test::same_bits(unit->forward(x), plain.forward(x)));
}

TEST_CASE("holder calls, Sequential and AnyModule take units, default arguments included") {
  Unit<AddImpl> add;
  const auto x = torch::zeros({2});
  CHECK(add(x, 2.0, 3).sum().item<float>() == 12.0F);
  torch::nn::Sequential sequence(Unit<AddImpl>(), torch::nn::Linear(2, 2), Unit<AddImpl>());
  CHECK(sequence->forward(x).sizes() == x.sizes());
  torch::nn::AnyModule any(add);
  CHECK(any.forward(x, 5.0, 1).sum().item<float>() == 10.0F);

  Unit<PairImpl> pair;
  const auto [left, right] = pair->forward(x, {1.0, 2.0});
  CHECK(left.sum().item<float>() == 2.0F);
  CHECK(right.sum().item<float>() == 4.0F);

  int calls = 0;
  Unit<QuietImpl> quiet;
  quiet->forward(&calls);
  CHECK(calls == 1);
}

TEST_CASE("any_forward is for overloaded and templated forwards") {
  Unit<OverloadedImpl, any_forward> overloaded;
  const auto x = torch::ones({2});
  CHECK(overloaded(x).sum().item<float>() == 4.0F);
  CHECK(overloaded(x, x + 4).sum().item<float>() == 12.0F);
  Unit<TemplatedImpl, any_forward> templated;
  CHECK(templated->forward(2.5) == 5.0);
}

TEST_CASE("a unit prints as its module and keeps a printer of its own") {
  const auto text = printed(TinyGpt());
  CHECK(text.find("TinyGptImpl") != std::string::npos);
  CHECK(text.find("TinyBlockImpl") != std::string::npos);
  CHECK(text.find("Unit") == std::string::npos);
  CHECK(printed(Unit<OwnPrintImpl>()).find("OwnPrint(7)") == 0);
  CHECK(Unit<AddImpl>()->name().find("Unit") == std::string::npos);
}

TEST_CASE("a clone is a unit again and independent") {
  Unit<CloneableImpl> unit;
  const auto copy = std::dynamic_pointer_cast<UnitImpl<CloneableImpl>>(unit->clone());
  REQUIRE(copy != nullptr);
  const auto x = torch::randn({4, 3});
  CHECK(test::same_bits(copy->forward(x), unit(x)));
  {
    const torch::NoGradGuard no_grad;
    copy->scale.mul_(2);
    copy->inner->weight.zero_();
  }
  CHECK(unit->scale.sum().item<float>() == 3.0F);
  CHECK(copy->named_parameters()["inner.weight"].abs().sum().item<float>() == 0.0F);
}

TEST_CASE("a unit saves, loads and moves like its module") {
  Unit<CloneableImpl> one, two;
  std::stringstream stream;
  torch::save(one, stream);
  torch::load(two, stream);
  CHECK(test::same_bits(one->inner->weight, two->inner->weight));
  one->to(torch::kDouble);
  CHECK(one->scale.dtype() == torch::kDouble);
}

TEST_CASE("tensors are found in whatever a forward returns") {
  const auto a = torch::zeros({1}), b = torch::ones({1});
  std::vector<at::Tensor> found;
  fsdp::collect_tensors(
      std::tuple(a, std::vector{b, torch::Tensor()}, std::map<std::string, at::Tensor>{{"x", a}},
                 std::optional<at::Tensor>(), std::make_pair(3, b), std::string("text")),
      found);
  CHECK(found.size() == 4);
  found.clear();
  torch::OrderedDict<std::string, torch::Tensor> dict;
  dict.insert("one", a);
  fsdp::collect_tensors(dict, found);
  CHECK(found.size() == 1);
}

}  // namespace convoy
