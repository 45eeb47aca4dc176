// Mixed precision: low-precision compute over float32 leaves, bit-equal to casting by hand.
#include "convoy/optim/adamw.h"
#include "convoy/optim/clip_grad_norm.h"
#include "mixed_runs.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

constexpr auto kLow = at::kBFloat16;

fsdp::Options bf16(bool shared = true) {
  return {.shared_gather = shared, .mixed_precision = {.param_dtype = kLow}};
}

// sum(weight * x): the gradient of weight is x.
struct ProductImpl : torch::nn::Module {
  explicit ProductImpl(std::int64_t numel = 64)
      : weight(register_parameter("weight", torch::ones({numel}))) {}
  torch::Tensor forward(torch::Tensor x) { return (weight * x).sum(); }
  torch::Tensor weight;
};
using Product = Unit<ProductImpl>;

// One parameter in the unit's dtype and one that is kept.
struct TwoProductsImpl : torch::nn::Module {
  TwoProductsImpl()
      : low(register_module("low", std::make_shared<ProductImpl>())),
        kept(register_module("kept", std::make_shared<ProductImpl>())) {}
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    return low->forward(x).to(torch::kFloat) + kept->forward(y.to(torch::kFloat));
  }
  std::shared_ptr<ProductImpl> low, kept;
};
using TwoProducts = Unit<TwoProductsImpl>;

torch::Tensor one_hot(std::int64_t at, double value) {
  auto x = torch::zeros({64});
  x[at] = value;
  return x;
}

at::Tensor whole(const ShardSpan& span, const at::Tensor& piece, Communicator& comm) {
  auto all = torch::zeros({c10::multiply_integers(span.sizes)});
  all.narrow(0, span.begin, span.numel).copy_(piece.flatten());
  comm.all_reduce(all, ReduceOp::kSum)->wait();
  return all;
}

}  // namespace

TEST_CASE("bf16 FSDP has the bits of one process that casts by hand in worlds 1 to 3") {
  for (int world = 1; world <= 3; ++world) check_mixed_parity(tiny_mixed(), world, bf16());
}

TEST_CASE("bf16 FSDP has the bits of one process that casts by hand in a world of 4") {
  check_mixed_parity(tiny_mixed(), 4, bf16());
}

TEST_CASE("bf16 with every way to divide a model and to reshard gives the same bits") {
  const StateDict expected = train_alone_mixed(tiny_mixed(), 3, kLow);
  for (const bool shared : {true, false}) {
    fsdp::Options options = bf16(shared);
    options.reshard_after_forward = false;
    check_same_state(train_sharded_mixed(tiny_mixed(), 3, options), expected, "no reshard");
    options.wrap = wrap_root_only();
    check_same_state(train_sharded_mixed(tiny_mixed(), 3, options), expected, "one unit");
  }
}

TEST_CASE("fp16 computes and reduces") {
  fsdp::Options options{.mixed_precision = {.param_dtype = at::kHalf}};
  check_mixed_parity(stack_mixed(), 2, options);
  options.mixed_precision.reduce_dtype = at::kHalf;
  check_mixed_parity(stack_mixed(), 3, options);
}

TEST_CASE("gradients reduced in bf16 are rounded before and once after their sum") {
  fsdp::Options options = bf16();
  options.mixed_precision.reduce_dtype = kLow;
  check_mixed_parity(tiny_mixed(), 3, options);
}

TEST_CASE("reduce_dtype works without param_dtype") {
  const int world = 3;
  for (const bool shared : {true, false}) {
    ranks(world, [&](Rank& rank) {
      Product model;
      FullyShardedDataParallel fsdp(
          model, rank.comm_ptr(),
          {.shared_gather = shared, .mixed_precision = {.reduce_dtype = kLow}});
      model(torch::full({64}, 1.0 + rank.rank() / 512.0)).backward();
      // 1 and 1 + 1/512 round to 1, 1 + 2/512 to 1: half a unit in the last place, to even.
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_same_bits(span.leaf.grad(), torch::ones({span.numel}), span.name);
      }
    });
  }
}

TEST_CASE("C046: a low-precision reduction adds in float32 and rounds once") {
  const std::vector<std::vector<float>> values{
      {256, 1, 1, 2}, {1, 256, 1, 2}, {2, 1, 1, 256}, {1, 1, 2, 256}};
  for (const bool shared : {true, false}) {
    ranks(4, [&](Rank& rank) {
      Product model(32 * 4);
      fsdp::Options options = bf16(shared);
      options.mixed_precision.reduce_dtype = kLow;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
      auto mine = torch::zeros({4});
      for (std::size_t i = 0; i < 4; ++i) {
        mine[static_cast<std::int64_t>(i)] = values[i][static_cast<std::size_t>(rank.rank())];
      }
      model(mine.repeat_interleave(32)).backward();
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_same_bits(span.leaf.grad(), torch::full({span.numel}, 65.0F), "mean of 260");
      }
    });
  }
}

TEST_CASE("C033: the norm over shards of a parameter in bf16 and one kept in float32") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      TwoProducts model;
      fsdp::Options options = bf16(shared);
      options.mixed_precision.keep_fp32 = keep_modules_named("kept");
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
      const auto backward = [&] {
        model->zero_grad();
        model(one_hot(5, 3), one_hot(40, 4)).backward();
      };
      backward();
      check_equal(clip_grad_norm_(fsdp, 1e9, 1.0), 7.0, "p = 1");
      backward();
      check_equal(clip_grad_norm_(fsdp, 1.0, 2.0), 5.0, "p = 2");
      const auto spans = fsdp.shard_spans();
      check_close(whole(spans[0], spans[0].leaf.grad(), rank.comm()), one_hot(5, 0.6), 1e-5);
      check_close(whole(spans[1], spans[1].leaf.grad(), rank.comm()), one_hot(40, 0.8), 1e-5);
    });
  }
}

TEST_CASE("leaves and gradients and optimizer state are float32 with bf16 compute") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), bf16(shared));
      optim::AdamW adam(model->parameters(), {.lr = 1e-2});
      int looks = 0;
      model->body = [&](StackImpl& self, torch::Tensor x) {
        check(x.scalar_type() == kLow, "inputs are cast");
        check(self.head->weight.scalar_type() == kLow, "the head computes in bf16");
        ++looks;
        for (auto& layer : self.layers) x = layer(x);
        return x;
      };
      for (int step = 0; step < 3; ++step) {
        model(stack_input(rank.rank(), step)).square().mean().backward();
        for (const auto& parameter : model->parameters()) {
          check(parameter.scalar_type() == at::kFloat, "a leaf outside of forward");
          check(parameter.grad().scalar_type() == at::kFloat, "its gradient");
          check(parameter.grad().sizes() == parameter.sizes(), "of the leaf's shape");
        }
        adam.step();
        adam.zero_grad();
      }
      check_equal(looks, 3, "forwards");
    });
  }
}

TEST_CASE("no_sync accumulates in the reduce dtype and without it on the leaves") {
  const auto gradient_of = [](int rank, int micro) { return 1.0 + rank + micro / 256.0; };
  for (const bool low : {false, true}) {
    for (const bool shared : {true, false}) {
      ranks(2, [&](Rank& rank) {
        Product model;
        fsdp::Options options = bf16(shared);
        if (low) options.mixed_precision.reduce_dtype = kLow;
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
        const auto backward = [&](int micro) {
          model(torch::full({64}, gradient_of(rank.rank(), micro))).backward();
        };
        {
          const auto pause = fsdp.no_sync();
          backward(1);
          backward(2);
        }
        check_equal(fsdp.local_gradient_bytes(), std::int64_t{64 * (low ? 2 : 4)}, "kept bytes");
        backward(3);
        // What arrives is bf16: 1 + micro / 256 rounds to 1, 1 + 2/256 and 1 + 4/256.
        const auto sum_of = [&](int r) {
          auto sum = torch::zeros({1}, low ? kLow : at::kFloat);
          for (int micro = 1; micro <= 3; ++micro) {
            sum.add_(torch::full({1}, gradient_of(r, micro)).to(kLow));
          }
          return sum.to(at::kFloat);
        };
        auto mean = (sum_of(0) + sum_of(1)) / 2;
        if (low) mean = mean.to(kLow).to(at::kFloat);
        for (const ShardSpan& span : fsdp.shard_spans()) {
          check_same_bits(span.leaf.grad(), mean.expand({span.numel}).contiguous(),
                          "under no_sync");
        }
        backward(3);
        backward(3);
        for (const ShardSpan& span : fsdp.shard_spans()) {
          check(span.leaf.grad().scalar_type() == at::kFloat, "accumulated on the leaf");
        }
      });
    }
  }
}

TEST_CASE("C030: frozen parameters in bf16 with a recomputed layer give the bits of one process") {
  auto training = stack_mixed();
  training.make = [] {
    Stack model = make_seeded_stack();
    model->layers[1]->up->weight.set_requires_grad(false);
    model->head->weight.set_requires_grad(false);
    model->body = [](StackImpl& self, torch::Tensor x) {
      x = self.layers[0](x);
      x = checkpoint([layer = self.layers[1]](torch::Tensor y) mutable { return layer(y); }, x);
      return self.layers[2](x);
    };
    return model;
  };
  check_mixed_parity(training, 2, bf16());
}

}  // namespace convoy
