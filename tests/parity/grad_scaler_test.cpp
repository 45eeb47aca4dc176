// Loss scaling: one overflow is one decision of all ranks, and every strategy has the same bits.
#include "convoy/optim/grad_scaler.h"

#include "convoy/ddp/ddp.h"
#include "convoy/ddp/zero.h"
#include "convoy/fsdp/fsdp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

#include <limits>

namespace {

using namespace convoy;
using namespace convoy::test;

constexpr int kScaledSteps = 7;

/// 64 + 7 + 1 elements: the last ranks of a larger world hold little or nothing.
struct ScaledNetImpl : torch::nn::Module {
  ScaledNetImpl()
      : matrix(register_parameter("matrix", torch::zeros({8, 8}))),
        vector(register_parameter("vector", torch::zeros({7}))),
        scalar(register_parameter("scalar", torch::zeros({}))) {}
  torch::Tensor forward(torch::Tensor x) {
    return torch::tanh(x.matmul(matrix)).sum() * (scalar + 1) + vector.square().sum();
  }
  torch::Tensor matrix, vector, scalar;
};
using ScaledNet = Unit<ScaledNetImpl>;

ScaledNet make_scaled_net() {
  ScaledNet model;
  seed_parameters(*model, 7);
  return model;
}

template <class Model>
torch::Tensor scaled_net_loss(Model& model, int rank, int step) {
  const auto x = torch::arange(16, torch::kFloat).view({2, 8}).sin();
  return model(x * (0.1 * (rank + 1) + 0.01 * step));
}

/// What a step ends with.
struct ScaledRecord {
  std::vector<double> scales;
  std::vector<bool> stepped;
  std::vector<std::uint64_t> norms;
  bool operator==(const ScaledRecord&) const = default;
};

/// The value that spoils one element of this rank's gradients in a step, 0 for none.
float spoiler(int step) {
  if (step == 1) return std::numeric_limits<float>::infinity();
  return step == 5 ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
}

void spoil(const std::vector<ShardSpan>& spans, std::int64_t element, float value) {
  const at::NoGradGuard no_grad;
  for (const ShardSpan& span : spans) {
    if (span.name != "matrix" || element < span.begin || element >= span.begin + span.numel) {
      continue;
    }
    span.leaf.grad().view({-1})[element - span.begin] = value;
  }
}

/// Steps with a growth interval of 2: scales 4 2 2 4 4 2 2 after each. `backward` gets the scaler.
template <class Clipped, class Optimizer, class Spans, class Backward>
ScaledRecord train_scaled(Clipped& clipped, Optimizer& optimizer, const Spans& spans,
                          const Backward& backward) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  ScaledRecord record;
  for (int step = 0; step < kScaledSteps; ++step) {
    optimizer.zero_grad();
    backward(scaler, step);
    if (spoiler(step) != 0) spoil(spans(), 40, spoiler(step));
    scaler.unscale_(clipped);
    record.norms.push_back(std::bit_cast<std::uint64_t>(clip_grad_norm_(clipped, 0.5)));
    record.stepped.push_back(scaler.step(optimizer));
    scaler.update();
    record.scales.push_back(scaler.get_scale());
  }
  return record;
}

/// nan's bits may depend on the operation that made it.
void check_scaled(ScaledRecord own, const ScaledRecord& expected, const std::string& strategy) {
  check(own.scales == expected.scales, strategy + ": scales");
  check(own.stepped == expected.stepped, strategy + ": steps made");
  for (std::size_t i = 0; i < own.norms.size(); ++i) {
    if (std::isnan(std::bit_cast<double>(expected.norms[i]))) {
      check(std::isnan(std::bit_cast<double>(own.norms[i])), strategy + ": nan");
    } else {
      check_equal(own.norms[i], expected.norms[i], concat(strategy, ": norm of step ", i));
    }
  }
}

void check_scaled_values(const std::vector<ShardSpan>& spans, const ScaledNet& expected,
                         const std::string& strategy) {
  for (const ShardSpan& span : spans) {
    const auto whole = expected->named_parameters()[span.name].detach().flatten();
    check_same_bits(span.leaf.detach().flatten(), whole.narrow(0, span.begin, span.numel),
                    strategy + ": " + span.name);
  }
}

optim::AdamWOptions scaled_adamw() { return {.lr = 0.05}; }

void check_scaling_in_world(int world) {
  auto alone = make_scaled_net();
  optim::AdamW adam(alone->parameters(), scaled_adamw());
  const auto expected = train_scaled(
      alone, adam, [&] { return whole_spans(*alone); },
      [&](GradScaler& scaler, int step) {
        mean_gradients(alone->parameters(), world, [&](int rank) {
          scaler.scale(scaled_net_loss(alone, rank, step)).backward();
        });
      });
  check(expected.scales == std::vector<double>{4, 2, 2, 4, 4, 2, 2}, "scales of one process");
  run_ranks(
      world,
      [&](Rank& r) {
        at::set_num_threads(1);
        const auto train = [&](auto& wrapped, auto& optimizer, const std::string& strategy) {
          const auto own = train_scaled(
              wrapped, optimizer, [&] { return wrapped.shard_spans(); },
              [&](GradScaler& scaler, int step) {
                scaler.scale(scaled_net_loss(wrapped, r.rank(), step)).backward();
              });
          check_scaled(own, expected, strategy);
          check_scaled_values(wrapped.shard_spans(), alone, strategy);
        };
        {
          auto model = make_scaled_net();
          DistributedDataParallel ddp(model, r.comm_ptr());
          optim::AdamW own(model->parameters(), scaled_adamw());
          train(ddp, own, "ddp");
        }
        {
          auto model = make_scaled_net();
          DistributedDataParallel ddp(model, r.comm_ptr());
          ZeroRedundancyOptimizer<optim::AdamW> zero(ddp, scaled_adamw());
          train(ddp, zero, "zero1");
        }
        for (const bool shared : {true, false}) {
          auto model = make_scaled_net();
          FullyShardedDataParallel fsdp(model, r.comm_ptr(), {.shared_gather = shared});
          optim::AdamW own(model->parameters(), scaled_adamw());
          train(fsdp, own, shared ? "fsdp, shared" : "fsdp, private");
        }
      },
      comm_options());
}

}  // namespace

TEST_CASE("C040: an overflow in one rank's shard makes both ranks skip the step and back off") {
  for (const bool shared : {true, false}) {
    run_ranks(
        2,
        [&](Rank& r) {
          at::set_num_threads(1);
          auto model = make_scaled_net();
          FullyShardedDataParallel fsdp(model, r.comm_ptr(), {.shared_gather = shared});
          optim::AdamW adam(model->parameters(), scaled_adamw());
          GradScaler scaler({.init_scale = 2});
          const auto values = [&] {
            std::vector<at::Tensor> all;
            for (const auto& leaf : model->parameters()) all.push_back(leaf.detach().clone());
            return all;
          };
          const auto before = values();
          for (int step = 0; step < 3; ++step) {
            adam.zero_grad();
            scaler.scale(scaled_net_loss(model, r.rank(), step)).backward();
            if (step == 0 && r.rank() == 0) {
              const at::NoGradGuard no_grad;
              model->matrix.mutable_grad().view({-1})[0] = std::numeric_limits<float>::infinity();
            }
            scaler.unscale_(fsdp);
            const bool stepped = scaler.step(adam);
            scaler.update();
            check_equal(stepped, step > 0, concat("step ", step));
            check_equal(scaler.get_scale(), 1.0, "scale");
            const auto after = values();
            bool changed = false;
            for (std::size_t i = 0; i < after.size(); ++i) {
              changed = changed || !same_bits(after[i], before[i]);
            }
            check_equal(changed, step > 0, concat("parameters changed by step ", step));
          }
        },
        comm_options());
  }
}

TEST_CASE("GradScaler: scales, norms and parameters have the bits of one process") {
  for (int world = 1; world <= 4; ++world) check_scaling_in_world(world);
}

TEST_CASE("GradScaler: units that compute in half back off until their gradients fit") {
  for (const bool shared : {true, false}) {
    run_ranks(
        3,
        [&](Rank& r) {
          at::set_num_threads(1);
          auto model = make_scaled_net();
          FullyShardedDataParallel fsdp(
              model, r.comm_ptr(),
              {.shared_gather = shared, .mixed_precision = {.param_dtype = at::kHalf}});
          optim::SGD sgd(model->parameters(), optim::SGDOptions{.lr = 0.01});
          GradScaler scaler;
          int skipped = 0;
          for (int step = 0; step < 12; ++step) {
            sgd.zero_grad();
            // 100 * 65536 does not fit in half.
            const auto loss = scaled_net_loss(model, r.rank(), step).to(at::kFloat) * 100;
            scaler.scale(loss).backward();
            scaler.unscale_(fsdp);
            if (!scaler.step(sgd)) ++skipped;
            scaler.update();
          }
          check(skipped > 5 && skipped < 12, concat("steps skipped: ", skipped));
          check_equal(scaler.get_scale(), std::ldexp(65536.0, -skipped), "scale");
          for (const auto& leaf : model->parameters()) {
            check(leaf.isfinite().all().item<bool>(), "finite parameters");
          }
        },
        comm_options());
  }
}
