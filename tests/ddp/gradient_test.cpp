// Gradients after backward: unused and tied parameters, accumulation, and what users do to .grad.
#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

double value(const torch::Tensor& tensor) { return tensor.item<double>(); }

/// Scalar parameters a, b and c, and the sum of those whose factor is not 0, each times its factor:
/// the local gradients are the factors.
class ScalarsImpl : public torch::nn::Module {
 public:
  ScalarsImpl()
      : a(register_parameter("a", torch::tensor(1.0F))),
        b(register_parameter("b", torch::tensor(2.0F))),
        c(register_parameter("c", torch::tensor(3.0F))) {}
  torch::Tensor forward(const std::vector<double>& factors) {
    torch::Tensor out = torch::zeros({}, torch::kFloat);
    const std::vector<torch::Tensor> all = {a, b, c};
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (factors[i] != 0) out = out + all[i] * factors[i];
    }
    return out;
  }
  torch::Tensor a, b, c;
};
TORCH_MODULE(Scalars);

/// One scalar w and the output w * x.
class ScaleImpl : public torch::nn::Module {
 public:
  ScaleImpl() : w(register_parameter("w", torch::tensor(1.0F))) {}
  torch::Tensor forward(double x) { return w * x; }
  torch::Tensor w;
};
TORCH_MODULE(Scale);

class TwoLayersImpl : public torch::nn::Module {
 public:
  TwoLayersImpl()
      : a(register_module("a", torch::nn::Linear(5, 3))),
        b(register_module("b", torch::nn::Linear(5, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return a(x); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(TwoLayers);

}  // namespace

TEST_CASE("C001: unused parameters are named at the end of the first backward") {
  run_ranks(
      2,
      [](Rank& rank) {
        DistributedDataParallel ddp(TwoLayers(), rank.comm_ptr(), {.bucket_cap_mb = 1e-6});
        for (int step = 0; step < 3; ++step) {
          const auto loss = ddp(batch_of(rank.rank(), step, 5)).sum();
          const auto error = check_throws(ErrorKind::kMisuse, "b.weight", [&] { loss.backward(); });
          const std::string text = error.what();
          check(text.find("b.bias") != std::string::npos, text);
          check(text.find("a.weight") == std::string::npos, text);
          check(text.find("find_unused_parameters = true") != std::string::npos, text);
        }
        rank.comm().barrier()->wait();  // nothing is left pending
      },
      kShort);
}

TEST_CASE("parameters used on one rank only are named on all, with the number of ranks") {
  run_ranks(
      3,
      [](Rank& rank) {
        DistributedDataParallel ddp(Scalars(), rank.comm_ptr());
        const auto loss = ddp(std::vector<double>{1, rank.rank() == 1 ? 5.0 : 0.0, 1});
        const auto error =
            check_throws(ErrorKind::kMisuse, "b (used on 1 of 3 ranks)", [&] { loss.backward(); });
        // The mean was taken nevertheless, so nothing diverges if the caller goes on.
        check(value(ddp.module()->b.grad()) == static_cast<double>(5.0F / 3.0F), "b");
        // And a complete backward works after it.
        for (auto& parameter : ddp.module()->parameters()) parameter.mutable_grad().reset();
        ddp(std::vector<double>{1.0 + rank.rank(), 2, 3}).backward();
        check(value(ddp.module()->a.grad()) == 2, "a after the error");
      },
      kShort);
}

TEST_CASE("C002: ranks that use different parameters, with the search on") {
  for (const double cap : {1e-6, 25.0}) {
    run_ranks(
        2,
        [&](Rank& rank) {
          Scalars model;
          DistributedDataParallel ddp(model, rank.comm_ptr(),
                                      {.bucket_cap_mb = cap, .find_unused_parameters = true});
          torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.5).weight_decay(1));
          for (int step = 0; step < 3; ++step) {
            const auto before = model->c.detach().clone();
            ddp(rank.rank() == 0 ? std::vector<double>{4, 0, 0} : std::vector<double>{0, 6, 0})
                .backward();
            check(value(model->a.grad()) == 2 && value(model->b.grad()) == 3, "means");
            check(!model->c.grad().defined(), "c has no gradient");
            sgd.step();
            check_same_bits(model->c, before, "c is left alone");
            sgd.zero_grad();
          }
        },
        kShort);
  }
}

TEST_CASE("a gradient that no rank added to comes back bit for bit") {
  // Three equal values summed and divided by three need not give the value back.
  run_ranks(
      3,
      [](Rank& rank) {
        Scalars model;
        DistributedDataParallel ddp(model, rank.comm_ptr(), {.find_unused_parameters = true});
        bool rounding_shows = false;
        for (int i = 0; i < 50; ++i) {
          const float first = 1.0F + 0.019997F * static_cast<float>(i);
          rounding_shows |= (first + first + first) / 3.0F != first;
          ddp(std::vector<double>{first, 1, 1}).backward();
          model->a.mutable_grad().fill_(first);
          ddp(std::vector<double>{0, 1, 1}).backward();
          check(model->a.grad().item<float>() == first, "a kept its gradient");
          for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
          // The same for a tensor of the user's own.
          const auto own = torch::tensor(first);
          model->a.mutable_grad() = own;
          ddp(std::vector<double>{0, 1, 1}).backward();
          check(model->a.grad().is_same(own) && own.item<float>() == first, "own tensor");
          for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
        }
        check(rounding_shows, "the values tried can tell");
      },
      kShort);
}

TEST_CASE("a gradient one rank added to is the mean of all ranks' gradients") {
  run_ranks(2, [](Rank& rank) {
    Scalars model;
    DistributedDataParallel ddp(model, rank.comm_ptr(), {.find_unused_parameters = true});
    ddp(std::vector<double>{2, 1, 1}).backward();  // a: 2 on both
    ddp(rank.rank() == 0 ? std::vector<double>{4, 1, 1} : std::vector<double>{0, 1, 1}).backward();
    check(value(model->a.grad()) == 4, "(2 + 4 + 2) / 2");
    model->a.mutable_grad().reset();
    {
      const auto pause = ddp.no_sync();
      ddp(std::vector<double>{rank.rank() == 0 ? 6.0 : 0.0, 1, 1}).backward();
    }
    ddp(std::vector<double>{0, 1, 1}).backward();
    check(value(model->a.grad()) == 3, "a was used under no_sync, on rank 0");
  });
}

TEST_CASE("C009: the state at backward time decides whether gradients are averaged") {
  run_ranks(2, [](Rank& rank) {
    Scale model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    const double factor = rank.rank() + 1;
    for (int cycle = 0; cycle < 3; ++cycle) {
      const auto before = all_reduces(rank);
      for (int k = 1; k <= 3; ++k) {
        const auto loss = ddp(factor * k);
        const auto pause = ddp.no_sync();
        loss.backward();
      }
      check_equal(all_reduces(rank), before, "collectives under no_sync");
      check_equal(value(model->w.grad()), rank.rank() == 0 ? 6.0 : 12.0, "local sum");
      ddp(factor * 4).backward();
      check_equal(value(model->w.grad()), 15.0, "mean of the sums");
      check_equal(all_reduces(rank), before + 1, "collectives in all");
      model->w.mutable_grad().reset();
    }
    check_equal(ddp.stats().local_backwards, std::int64_t{9});

    // A forward inside the scope with its backward outside is synchronised.
    torch::Tensor loss;
    {
      const auto outer = ddp.no_sync();
      const auto inner = ddp.no_sync();
      loss = ddp(factor);
    }
    loss.backward();
    check_equal(value(model->w.grad()), 1.5, "synchronised");
  });
}

TEST_CASE("C005: several forwards, then several backwards") {
  run_ranks(2, [](Rank& rank) {
    Scale model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    std::vector<torch::Tensor> losses;
    for (int i = 1; i <= 3; ++i) losses.push_back(ddp(rank.rank() == 0 ? i : 4 + i));
    const std::vector<double> expected = {3, 7, 12};
    for (std::size_t i = 0; i < losses.size(); ++i) {
      losses[i].backward({}, /*retain_graph=*/true);
      check_equal(value(model->w.grad()), expected[i], "w.grad");
    }
    // The same graph once more.
    losses[0].backward();
    check_equal(value(model->w.grad()), 15.0, "retained graph");
  });
}

TEST_CASE("C015: a tied parameter has one gradient, the sum of its uses") {
  class TiedImpl : public torch::nn::Module {
   public:
    TiedImpl() : table_(register_parameter("table", torch::ones({2, 1}))) {
      register_parameter("output", table_);
    }
    torch::Tensor forward(double first, double second) {
      return table_[0].sum() * first + named_parameters()["output"][0].sum() * second;
    }

   private:
    torch::Tensor table_;
  };
  for (const double cap : {1e-6, 25.0}) {
    run_ranks(2, [&](Rank& rank) {
      auto model = std::make_shared<TiedImpl>();
      DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = cap});
      torch::optim::SGD sgd({model->named_parameters()["table"]}, 0.1);
      for (int step = 0; step < 3; ++step) {
        (rank.rank() == 0 ? ddp(1.0, 2.0) : ddp(3.0, 4.0)).backward();
        check_same_bits(model->named_parameters()["output"].grad(), torch::tensor({{5.0F}, {0.0F}}),
                        "gradient");
        sgd.step();
        sgd.zero_grad();
        check(model->named_parameters()["table"].is_same(model->named_parameters()["output"]),
              "still one tensor");
      }
      // Two floats, two flags, padded to a line: the tensor is in the buckets once.
      check_equal(ddp.bucket_bytes(), std::int64_t{64}, "bucket bytes");
    });
  }
}

TEST_CASE("C016: gradients zeroed in place, dropped, or replaced by the user") {
  run_ranks(2, [](Rank& rank) {
    Scale model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    const double local = rank.rank() == 0 ? 1 : 3;
    for (int step = 0; step < 9; ++step) {
      if (step % 3 == 0 && model->w.grad().defined()) model->w.mutable_grad().zero_();
      if (step % 3 == 1) model->w.mutable_grad().reset();
      if (step % 3 == 2) model->w.mutable_grad() = torch::full({}, 10.0F);
      ddp(local).backward();
      check_equal(value(model->w.grad()), step % 3 == 2 ? 12.0 : 2.0, concat("step ", step));
      // What torch's optimizers do first when they zero gradients.
      model->w.mutable_grad().detach_();
    }
    // Users may even point the gradient tensor elsewhere.
    model->w.mutable_grad().set_data(torch::full({}, 100.0F));
    ddp(local).backward();
    check_equal(value(model->w.grad()), 102.0, "set_data");
    // A tensor kept from .grad() is a view: it sees the next mean.
    const auto kept = model->w.grad();
    model->w.mutable_grad().reset();
    ddp(local * 2).backward();
    check_equal(value(kept), 4.0, "a view of the bucket");
  });
}

TEST_CASE("a gradient of another layout or shape is an error with the parameter's name") {
  run_ranks(1, [](Rank& rank) {
    auto table = torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2));
    class LookupImpl : public torch::nn::Module {
     public:
      explicit LookupImpl(torch::nn::Embedding table) : table_(register_module("table", table)) {}
      torch::Tensor forward(const torch::Tensor& index) {
        return torch::embedding(table_->weight, index, -1, false, /*sparse=*/true);
      }

     private:
      torch::nn::Embedding table_;
    };
    DistributedDataParallel ddp(std::make_shared<LookupImpl>(table), rank.comm_ptr());
    const auto loss = ddp(torch::tensor({1, 3})).sum();
    check_throws(ErrorKind::kInvalidArgument, "table.weight is sparse", [&] { loss.backward(); });
  });
}

TEST_CASE("C010: a parameter frozen or unfrozen after wrapping is an error that names it") {
  run_ranks(2, [](Rank& rank) {
    Scalars model;
    model->b.set_requires_grad(false);
    DistributedDataParallel ddp(model, rank.comm_ptr());
    const std::vector<double> factors = {1.0 + rank.rank(), 0, 3};
    for (int step = 0; step < 2; ++step) ddp(factors).backward();
    model->b.set_requires_grad(true);
    check_throws(ErrorKind::kMisuse, "parameter b was frozen when", [&] { ddp(factors); });
    model->b.set_requires_grad(false);
    model->a.set_requires_grad(false);
    check_throws(ErrorKind::kMisuse, "parameter a was frozen after", [&] { ddp(factors); });
    model->a.set_requires_grad(true);
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    ddp(factors).backward();
    check_equal(value(model->a.grad()), 1.5, "after it was undone");
  });
}

TEST_CASE("a dtype changed after wrapping is an error that names the parameter") {
  run_ranks(2, [](Rank& rank) {
    OddNet model;
    DistributedDataParallel ddp(model, rank.comm_ptr());
    model->to(torch::kDouble);
    check_throws(ErrorKind::kMisuse, "changed its dtype",
                 [&] { ddp(batch_of(rank.rank(), 0, 5).to(torch::kDouble)); });
  });
}

TEST_CASE("gradients have the layout of their parameters, and lie in the communicator's memory") {
  run_ranks(2, [](Rank& rank) {
    class TurnedImpl : public torch::nn::Module {
     public:
      TurnedImpl()
          : w_(register_parameter("w", torch::arange(12, torch::kFloat).view({3, 4}).t())),
            v_(register_parameter("v", torch::ones({4}, torch::kDouble))) {}
      torch::Tensor forward(const torch::Tensor& x) { return (w_.mv(x) * v_).sum(); }

     private:
      torch::Tensor w_, v_;
    };
    auto model = std::make_shared<TurnedImpl>();
    DistributedDataParallel ddp(model, rank.comm_ptr());
    std::vector<const void*> places;
    for (int step = 0; step < 3; ++step) {
      ddp(torch::full({3}, 1.0F + static_cast<float>(rank.rank()))).backward();
      const auto named = model->named_parameters();
      check(named["w"].grad().strides() == named["w"].strides(), "strides");
      check_same_bits(named["w"].grad(), torch::full({4, 3}, 1.5F), "w");
      check(named["v"].grad().scalar_type() == torch::kDouble, "dtype");
      places.push_back(named["w"].grad().data_ptr());
      for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    }
    // The buckets are rebuilt once, at the second backward; after that gradients stay in place.
    check(places[1] == places[2], "the place stays");
  });
}

TEST_CASE("a gradient that a hook writes to before its bucket starts is averaged as written") {
  run_ranks(2, [](Rank& rank) {
    class ScaledImpl : public torch::nn::Module {
     public:
      torch::Tensor forward(const torch::Tensor& x) {
        auto middle = x * first;
        middle.register_hook([this](const torch::Tensor&) { last.mutable_grad().mul_(3.0); });
        return middle * last;
      }
      torch::Tensor first = register_parameter("first", torch::ones({90, 90}));
      torch::Tensor last = register_parameter("last", torch::ones({90, 90}));
    };
    auto model = std::make_shared<ScaledImpl>();
    DistributedDataParallel ddp(model, rank.comm_ptr(), {.bucket_cap_mb = 25});
    for (int step = 0; step < 3; ++step) {
      ddp(torch::full({90, 90}, 1.0F + static_cast<float>(rank.rank()))).sum().backward();
      check_same_bits(model->last.grad(), torch::full({90, 90}, 4.5F), "last");
      check_same_bits(model->first.grad(), torch::full({90, 90}, 1.5F), "first");
      model->zero_grad();
    }
  });
}

}  // namespace convoy::test
