// convoy::optim::AdamW: PyTorch's meaning, torch's types around it, and what it refuses.
#include "convoy/optim/adamw.h"

#include "optim/threads.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <limits>
#include <sstream>

namespace {

using namespace convoy;
using test::check_close;
using test::check_same_bits;
using test::check_throws;
using test::Threads;

const std::vector<std::vector<std::int64_t>> kShapes = {{7}, {3, 5}, {}, {40}, {17, 59}, {1}};

std::vector<at::Tensor> make_adamw_parameters(at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> params;
  auto generator = at::detail::createCPUGenerator(11);
  for (const auto& shape : kShapes) {
    params.push_back(
        torch::randn(shape, generator, torch::TensorOptions().dtype(dtype)).requires_grad_());
  }
  return params;
}

/// Gradients of `step`, of magnitudes from 1e-4 to 1e2, the same for every caller.
void set_gradients(const std::vector<at::Tensor>& params, int step) {
  auto generator = at::detail::createCPUGenerator(1000 + static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < params.size(); ++i) {
    auto grad = torch::randn(params[i].sizes(), generator, params[i].options());
    params[i].mutable_grad() = grad.mul_(std::pow(10.0, static_cast<double>(i) - 3)).detach();
  }
}

void train_adamw(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params,
                 int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(params, step);
    optimizer.step();
  }
}

void check_all_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                     double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i)
    check_close(a[i], b[i], tolerance, concat("parameter ", i));
}

void check_all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) check_same_bits(a[i], b[i], concat("parameter ", i));
}

/// Steps of at::_fused_adamw_ with the same gradients.
std::vector<at::Tensor> fused(int steps, double lr, double weight_decay, bool amsgrad,
                              at::ScalarType dtype) {
  const auto params = make_adamw_parameters(dtype);
  std::vector<at::Tensor> values, avgs, squares, largest, counts;
  for (const auto& param : params) {
    values.push_back(param.detach());
    avgs.push_back(torch::zeros_like(values.back()));
    squares.push_back(torch::zeros_like(values.back()));
    if (amsgrad) largest.push_back(torch::zeros_like(values.back()));
    counts.push_back(torch::zeros({}, at::kFloat));
  }
  for (int step = 0; step < steps; ++step) {
    set_gradients(params, step);
    std::vector<at::Tensor> grads;
    for (const auto& param : params) grads.push_back(param.grad());
    for (auto& count : counts) count.add_(1);
    at::_fused_adamw_(values, grads, avgs, squares, largest, counts, lr, 0.9, 0.999, weight_decay,
                      1e-8, amsgrad, /*maximize=*/false);
  }
  return params;
}

/// Runs `steps` steps on `threads` threads and returns the parameters.
std::vector<at::Tensor> ours(int steps, int threads) {
  const Threads scope(threads);
  std::vector<at::Tensor> params = {torch::linspace(-3, 3, 100003).requires_grad_(),
                                    torch::linspace(-1, 2, 70001).requires_grad_()};
  optim::AdamW adamw(params, {.lr = 1e-2});
  train_adamw(adamw, params, 0, steps);
  return params;
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace

TEST_CASE("AdamW equals at::_fused_adamw_ and torch::optim::AdamW") {
  const Threads scope(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-14;
    for (const bool amsgrad : {false, true}) {
      for (const double weight_decay : {0.0, 0.1}) {
        const auto params = make_adamw_parameters(dtype);
        optim::AdamW adamw(params, {.lr = 1e-2, .weight_decay = weight_decay, .amsgrad = amsgrad});
        train_adamw(adamw, params, 0, 20);
        check_all_close(params, fused(20, 1e-2, weight_decay, amsgrad, dtype), tolerance);

        const auto stock = make_adamw_parameters(dtype);
        torch::optim::AdamW torch_adamw(
            stock, torch::optim::AdamWOptions(1e-2).weight_decay(weight_decay).amsgrad(amsgrad));
        train_adamw(torch_adamw, stock, 0, 20);
        check_all_close(params, stock, tolerance);
      }
    }
  }
}

TEST_CASE("AdamW: one step is within a few last places of at::_fused_adamw_") {
  const auto params = make_adamw_parameters();
  optim::AdamW adamw(params, {.lr = 1e-3, .weight_decay = 0.0});
  train_adamw(adamw, params, 0, 1);
  const auto expected = fused(1, 1e-3, 0.0, false, at::kFloat);
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto a = params[i].detach();
    const auto b = expected[i].detach();
    const auto last_place = at::maximum(a.abs(), b.abs()) * std::numeric_limits<float>::epsilon();
    REQUIRE((a - b).abs().le(2 * last_place).all().item<bool>());
  }
}

TEST_CASE("AdamW: threads do not change a bit") {
  const auto one = ours(3, 1);
  for (const int threads : {2, 3, 5}) check_all_same(one, ours(3, threads));
}

TEST_CASE("AdamW: a parameter cut in pieces gives the bits of the whole") {
  for (const std::int64_t length : {1, 7, 15, 17, 40, 1003}) {
    const auto whole = torch::linspace(-2, 3, length).requires_grad_();
    optim::AdamW adamw({whole}, {.lr = 1e-2});
    train_adamw(adamw, {whole}, 0, 5);
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, length / 2, length}) {
      const auto values = torch::linspace(-2, 3, length);
      const std::vector<at::Tensor> pieces = {
          values.narrow(0, 0, cut).clone().requires_grad_(),
          values.narrow(0, cut, length - cut).clone().requires_grad_()};
      optim::AdamW parts(pieces, {.lr = 1e-2});
      for (int step = 0; step < 5; ++step) {
        set_gradients({whole}, step);
        pieces[0].mutable_grad() = whole.grad().narrow(0, 0, cut);
        pieces[1].mutable_grad() = whole.grad().narrow(0, cut, length - cut);
        parts.step();
      }
      check_same_bits(torch::cat({pieces[0].detach(), pieces[1].detach()}), whole.detach());
    }
  }
}

TEST_CASE("AdamW options: designated, torch's own, groups that inherit, closures") {
  const auto a = torch::ones({2}).requires_grad_();
  const auto b = torch::ones({2}).requires_grad_();
  const auto options_of = [](const torch::optim::Optimizer& o, std::size_t group) {
    return static_cast<const torch::optim::AdamWOptions&>(o.param_groups()[group].options());
  };
  optim::AdamW defaults({a, b});
  REQUIRE(options_of(defaults, 0) == torch::optim::AdamWOptions());
  optim::AdamW empty_braces({a, b}, {});
  REQUIRE(options_of(empty_braces, 0).lr() == 1e-3);
  optim::AdamW designated({a, b}, {.lr = 3e-4, .betas = {0.8, 0.95}});
  REQUIRE(options_of(designated, 0).lr() == 3e-4);
  REQUIRE(options_of(designated, 0).betas() == std::make_tuple(0.8, 0.95));
  optim::AdamW fluent({a, b}, torch::optim::AdamWOptions(3e-4).betas({0.8, 0.95}));
  REQUIRE(options_of(fluent, 0) == options_of(designated, 0));
  REQUIRE(static_cast<torch::optim::AdamWOptions&>(fluent.defaults()).lr() == 3e-4);

  // 0.01 is torch's default for weight decay: here it is kept, not replaced by the 0.5 below.
  optim::AdamW groups({{.params = {a}, .weight_decay = 0.01}, {.params = {b}, .lr = 7.0}},
                      {.lr = 3e-4, .weight_decay = 0.5});
  REQUIRE(options_of(groups, 0).weight_decay() == 0.01);
  REQUIRE(options_of(groups, 0).lr() == 3e-4);
  REQUIRE(options_of(groups, 1).weight_decay() == 0.5);
  REQUIRE(options_of(groups, 1).lr() == 7.0);

  std::vector<torch::optim::OptimizerParamGroup> torch_groups;
  torch_groups.emplace_back(std::vector<at::Tensor>{a},
                            std::make_unique<torch::optim::AdamWOptions>(0.25));
  torch_groups.emplace_back(std::vector<at::Tensor>{b});
  optim::AdamW from_torch(torch_groups, torch::optim::AdamWOptions(0.125));
  REQUIRE(options_of(from_torch, 0).lr() == 0.25);
  REQUIRE(options_of(from_torch, 1).lr() == 0.125);

  designated.param_groups()[0].options().set_lr(0.5);
  REQUIRE(designated.param_groups()[0].options().get_lr() == 0.5);

  const auto loss = designated.step([&] {
    designated.zero_grad();
    auto value = (a * a).sum();
    value.backward();
    return value;
  });
  REQUIRE(loss.item<float>() == 2.0f);
  REQUIRE(a.lt(1).all().item<bool>());
}

TEST_CASE("AdamW saves and loads, also to and from torch::optim::AdamW") {
  const auto straight = make_adamw_parameters();
  optim::AdamW uninterrupted(straight, {.lr = 1e-2, .amsgrad = true});
  train_adamw(uninterrupted, straight, 0, 10);

  const auto params = make_adamw_parameters();
  std::string bytes;
  {
    optim::AdamW first(params, {.lr = 1e-2, .amsgrad = true});
    train_adamw(first, params, 0, 5);
    bytes = saved(first);
  }
  optim::AdamW second(params, {.lr = 1.0});
  load(second, bytes);
  REQUIRE(second.param_groups()[0].options().get_lr() == 1e-2);
  train_adamw(second, params, 5, 10);
  check_all_same(params, straight);

  const auto stock = make_adamw_parameters();
  torch::optim::AdamW torch_adamw(stock, torch::optim::AdamWOptions(1e-2));
  train_adamw(torch_adamw, stock, 0, 3);
  const auto taken_over = make_adamw_parameters();
  for (std::size_t i = 0; i < stock.size(); ++i) taken_over[i].detach().copy_(stock[i].detach());
  optim::AdamW from_torch(taken_over);
  load(from_torch, saved(torch_adamw));
  const auto given_back = make_adamw_parameters();
  train_adamw(from_torch, taken_over, 3, 6);
  for (std::size_t i = 0; i < stock.size(); ++i) {
    given_back[i].detach().copy_(taken_over[i].detach());
  }
  torch::optim::AdamW back(given_back);
  load(back, saved(from_torch));
  train_adamw(torch_adamw, stock, 3, 9);
  train_adamw(back, given_back, 6, 9);
  check_all_close(given_back, stock, 1e-6);
}

TEST_CASE("AdamW: empty parameters get no state, absent gradients no step, both no trouble") {
  const auto empty = torch::ones({0, 4}).requires_grad_();
  const auto idle = torch::ones({3}).requires_grad_();
  const auto used = torch::ones({3}).requires_grad_();
  optim::AdamW adamw({empty, idle, used}, {.lr = 0.1});
  const auto version = [](const at::Tensor& t) { return t._version(); };
  const auto before = std::make_tuple(version(empty), version(idle), version(used));
  for (int step = 1; step <= 3; ++step) {
    empty.mutable_grad() = torch::zeros({0, 4});
    used.mutable_grad() = torch::ones({3});
    adamw.step();
  }
  REQUIRE(adamw.state().size() == 1);
  REQUIRE(idle.eq(1).all().item<bool>());
  REQUIRE(std::make_tuple(version(empty), version(idle), version(used)) ==
          std::make_tuple(std::get<0>(before) + 3, std::get<1>(before), std::get<2>(before) + 3));
}

TEST_CASE("AdamW: backward through a graph older than the step is torch's own error") {
  const auto weight = torch::ones({3, 3}).requires_grad_();
  const auto input = torch::ones({2, 3}).requires_grad_();
  optim::AdamW adamw({weight}, {.lr = 0.1});
  const auto stale = input.matmul(weight).sum();
  weight.mutable_grad() = torch::ones({3, 3});
  adamw.step();
  REQUIRE_THROWS_WITH(stale.backward(), Catch::Contains("modified by an inplace operation"));
}

TEST_CASE("AdamW converts gradients of another dtype or layout") {
  const auto values = torch::randn({8, 6});
  const auto grads = torch::randn({8, 6}).to(at::kBFloat16).to(at::kFloat);
  const auto expected = values.clone().requires_grad_();
  optim::AdamW reference({expected}, {.lr = 0.1});
  expected.mutable_grad() = grads;
  reference.step();

  const std::vector<at::Tensor> variants = {
      grads.to(at::kBFloat16), grads.to(at::kDouble), grads.t().contiguous().t(),
      torch::stack({grads, grads}, 2).select(2, 0), at::_neg_view(grads.neg())};
  for (const auto& grad : variants) {
    const auto param = values.clone().requires_grad_();
    optim::AdamW adamw({param}, {.lr = 0.1});
    param.mutable_grad() = grad;
    adamw.step();
    check_same_bits(param.detach(), expected.detach());
  }
  // A parameter stored column by column, and one that is every second column of another tensor.
  auto wide = torch::zeros({8, 12});
  const std::vector<at::Tensor> layouts = {values.t().contiguous().t(),
                                           wide.slice(1, 0, 12, 2).copy_(values)};
  for (const auto& layout : layouts) {
    const auto param = layout.detach().requires_grad_();
    REQUIRE_FALSE(param.is_contiguous());
    optim::AdamW adamw({param}, {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      param.mutable_grad() = grads;
      adamw.step();
    }
    const auto twice = values.clone().requires_grad_();
    optim::AdamW plain({twice}, {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      twice.mutable_grad() = grads;
      plain.step();
    }
    check_same_bits(param.detach(), twice.detach());
  }
  REQUIRE(wide.slice(1, 1, 12, 2).eq(0).all().item<bool>());
}

TEST_CASE("AdamW steps a tensor that is listed twice once") {
  const auto once = torch::ones({3}).requires_grad_();
  const auto twice = torch::ones({3}).requires_grad_();
  once.mutable_grad() = twice.mutable_grad() = torch::ones({3});
  optim::AdamW({once}, {.lr = 0.1}).step();
  optim::AdamW({twice, twice}, {.lr = 0.1}).step();
  check_same_bits(once.detach(), twice.detach());
}

TEST_CASE("AdamW refuses what it cannot do right, and changes nothing") {
  const auto good = torch::ones({2}).requires_grad_();
  const auto refused = [&](std::string_view part, at::Tensor param, at::Tensor grad) {
    good.mutable_grad() = torch::ones({2});
    optim::AdamW adamw({good, param}, {.lr = 0.1});
    param.mutable_grad() = std::move(grad);
    const auto error = check_throws(ErrorKind::kInvalidArgument, part, [&] { adamw.step(); });
    REQUIRE(std::string(error.what()).find("AdamW, parameter 1 of group 0") != std::string::npos);
    REQUIRE(good.eq(1).all().item<bool>());
    REQUIRE(adamw.state().empty());
  };
  const auto param = [] { return torch::ones({4, 2}).requires_grad_(); };
  refused("sparse", param(), torch::ones({4, 2}).to_sparse());
  refused("shape [2]", param(), torch::ones({2}));
  refused("expanded", torch::ones({2}).expand({4, 2}).detach().requires_grad_(),
          torch::ones({4, 2}));
  refused("BFloat16", torch::ones({4}, at::kBFloat16).requires_grad_(),
          torch::ones({4}, at::kBFloat16));

  optim::AdamW adamw({good}, {.lr = 0.1});
  good.mutable_grad() = torch::ones({2});
  adamw.step();
  good.set_data(torch::ones({5}));
  good.mutable_grad() = torch::ones({5});
  check_throws(ErrorKind::kInvalidArgument, "state exp_avg", [&] { adamw.step(); });

  const auto shared = param();
  shared.mutable_grad() = torch::ones({4, 2});
  optim::AdamW two_groups({{.params = {shared}}, {.params = {shared}}});
  check_throws(ErrorKind::kInvalidArgument, "is also in group 0", [&] { two_groups.step(); });

  check_throws(ErrorKind::kInvalidArgument, "lr is -1",
               [&] { optim::AdamW({param()}, {.lr = -1}); });
  check_throws(ErrorKind::kInvalidArgument, "betas", [&] {
    optim::AdamW({param()}, {.betas = {1.0, 0.9}});
  });
  check_throws(ErrorKind::kInvalidArgument, "eps", [&] { optim::AdamW({param()}, {.eps = -1}); });
  check_throws(ErrorKind::kInvalidArgument, "weight_decay is -2",
               [&] { optim::AdamW({{.params = {param()}, .weight_decay = -2}}, {.lr = 1}); });
  check_throws(ErrorKind::kInvalidArgument, "undefined", [&] { optim::AdamW({at::Tensor()}); });
  check_throws(ErrorKind::kInvalidArgument, "not a leaf",
               [&] { optim::AdamW({param() * 2}, {.lr = 1}); });
}
