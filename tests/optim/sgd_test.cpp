// convoy::optim::SGD: PyTorch's meaning of every option, and what is the same as in AdamW.
#include "convoy/optim/sgd.h"

#include "optim/threads.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <sstream>

namespace {

using namespace convoy;
using test::check_close;
using test::check_same_bits;
using test::check_throws;
using test::Threads;

std::vector<at::Tensor> make_sgd_parameters(at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> params;
  auto generator = at::detail::createCPUGenerator(5);
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{7}, {3, 5}, {}, {40}, {17, 59}}) {
    params.push_back(
        torch::randn(shape, generator, torch::TensorOptions().dtype(dtype)).requires_grad_());
  }
  return params;
}

void train_sgd(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int from,
               int to) {
  for (int step = from; step < to; ++step) {
    auto generator = at::detail::createCPUGenerator(70 + static_cast<std::uint64_t>(step));
    for (const auto& param : params) {
      param.mutable_grad() = torch::randn(param.sizes(), generator, param.options()).detach();
    }
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("SGD equals torch::optim::SGD for every option") {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-14;
    for (const optim::SGDOptions& options :
         {optim::SGDOptions{.lr = 0.05},
          {.lr = 0.05, .weight_decay = 0.1},
          {.lr = 0.05, .momentum = 0.9},
          {.lr = 0.05, .momentum = 0.9, .nesterov = true},
          {.lr = 0.05, .momentum = 0.5, .dampening = 0.3, .weight_decay = 0.01}}) {
      const auto params = make_sgd_parameters(dtype);
      optim::SGD sgd(params, options);
      train_sgd(sgd, params, 0, 10);
      const auto stock = make_sgd_parameters(dtype);
      torch::optim::SGD torch_sgd(stock, torch::optim::SGDOptions(options.lr)
                                             .momentum(options.momentum)
                                             .dampening(options.dampening)
                                             .weight_decay(options.weight_decay)
                                             .nesterov(options.nesterov));
      train_sgd(torch_sgd, stock, 0, 10);
      for (std::size_t i = 0; i < params.size(); ++i) check_close(params[i], stock[i], tolerance);
    }
  }
}

TEST_CASE("SGD: threads and cuts do not change a bit") {
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    const auto param = torch::linspace(-3, 3, 200003).requires_grad_();
    optim::SGD sgd({param}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    train_sgd(sgd, {param}, 0, 3);
    results.push_back(param.detach());
  }
  check_same_bits(results[0], results[1]);
  check_same_bits(results[0], results[2]);
}

TEST_CASE("SGD options: designated, torch's own, groups that inherit") {
  const auto a = torch::ones({2}).requires_grad_();
  const auto b = torch::ones({2}).requires_grad_();
  const auto options_of = [](const torch::optim::Optimizer& o, std::size_t group) {
    return static_cast<const torch::optim::SGDOptions&>(o.param_groups()[group].options());
  };
  optim::SGD designated({a, b}, {.lr = 0.1, .momentum = 0.9});
  optim::SGD fluent({a, b}, torch::optim::SGDOptions(0.1).momentum(0.9));
  REQUIRE(options_of(designated, 0) == options_of(fluent, 0));
  optim::SGD groups({{.params = {a}, .weight_decay = 0.0}, {.params = {b}, .lr = 0.25}},
                    {.lr = 0.5, .weight_decay = 0.125});
  REQUIRE(options_of(groups, 0).weight_decay() == 0.0);
  REQUIRE(options_of(groups, 0).lr() == 0.5);
  REQUIRE(options_of(groups, 1).weight_decay() == 0.125);
  REQUIRE(options_of(groups, 1).lr() == 0.25);
}

TEST_CASE("SGD saves and loads its momentum, also with torch::optim::SGD") {
  const auto straight = make_sgd_parameters();
  optim::SGD uninterrupted(straight, {.lr = 0.05, .momentum = 0.9});
  train_sgd(uninterrupted, straight, 0, 6);

  const auto params = make_sgd_parameters();
  std::ostringstream bytes;
  {
    optim::SGD first(params, {.lr = 0.05, .momentum = 0.9});
    train_sgd(first, params, 0, 3);
    torch::serialize::OutputArchive archive;
    first.save(archive);
    archive.save_to(bytes);
  }
  const auto stock = make_sgd_parameters();
  for (std::size_t i = 0; i < params.size(); ++i) stock[i].detach().copy_(params[i].detach());
  optim::SGD second(params);
  torch::optim::SGD torch_sgd(stock, torch::optim::SGDOptions(0.5));
  for (torch::optim::Optimizer* optimizer : {static_cast<torch::optim::Optimizer*>(&second),
                                             static_cast<torch::optim::Optimizer*>(&torch_sgd)}) {
    std::istringstream stream(bytes.str());
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer->load(archive);
  }
  train_sgd(second, params, 3, 6);
  train_sgd(torch_sgd, stock, 3, 6);
  for (std::size_t i = 0; i < params.size(); ++i) {
    check_same_bits(params[i].detach(), straight[i].detach());
    check_close(stock[i], straight[i], 1e-6);
  }
}

TEST_CASE("SGD raises versions, of empty parameters too, and skips absent gradients") {
  const auto empty = torch::ones({0}).requires_grad_();
  const auto idle = torch::ones({3}).requires_grad_();
  const auto weight = torch::ones({3, 3}).requires_grad_();
  optim::SGD sgd({empty, idle, weight}, {.lr = 0.1, .momentum = 0.9});
  const auto input = torch::ones({2, 3}).requires_grad_();
  const auto stale = input.matmul(weight).sum();
  const auto versions = std::make_pair(empty._version(), idle._version());
  empty.mutable_grad() = torch::ones({0});
  weight.mutable_grad() = torch::ones({3, 3});
  sgd.step();
  REQUIRE(empty._version() == versions.first + 1);
  REQUIRE(idle._version() == versions.second);
  REQUIRE(idle.eq(1).all().item<bool>());
  REQUIRE(sgd.state().size() == 1);
  REQUIRE_THROWS_WITH(stale.backward(), Catch::Contains("modified by an inplace operation"));
}

TEST_CASE("SGD refuses what it cannot do right") {
  const auto param = [] { return torch::ones({4, 2}).requires_grad_(); };
  const auto sparse = param();
  sparse.mutable_grad() = torch::ones({4, 2}).to_sparse();
  optim::SGD sgd({sparse}, {.lr = 0.1});
  check_throws(ErrorKind::kInvalidArgument, "sparse", [&] { sgd.step(); });
  const auto broadcast = param();
  broadcast.mutable_grad() = torch::ones({2});
  optim::SGD other({broadcast}, {.lr = 0.1});
  check_throws(ErrorKind::kInvalidArgument, "shape [2]", [&] { other.step(); });
  check_throws(ErrorKind::kInvalidArgument, "momentum is -1",
               [&] { optim::SGD({param()}, {.lr = 1, .momentum = -1}); });
  check_throws(ErrorKind::kInvalidArgument, "nesterov",
               [&] { optim::SGD({param()}, {.lr = 1, .nesterov = true}); });
  check_throws(ErrorKind::kInvalidArgument, "lr is nan",
               [&] { optim::SGD({param()}, {.lr = std::nan("")}); });
}
