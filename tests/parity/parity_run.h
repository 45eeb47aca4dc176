// One recipe of training, run by one process or by ranks under a strategy, recorded to the bit.
#pragma once

#include "convoy/comm/run_ranks.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/clip_grad_norm.h"
#include "convoy/optim/decay_groups.h"
#include "convoy/optim/sgd.h"
#include "convoy/optim/warmup_cosine.h"
#include "support/check.h"
#include "support/reference.h"
#include "support/tiny_gpt.h"

#include <torch/torch.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace convoy::test {

enum class Rule { kAdamW, kSgd, kTorchAdamW, kTorchSgd };

struct Recipe {
  Rule rule = Rule::kAdamW;
  int world = 1;
  int steps = 20;
  int micro_steps = 1;    ///< All but the last under no_sync.
  double max_norm = 1.5;  ///< Bites in some steps and not in others.
};

/// What a run leaves behind. Losses and norms are kept as bits.
struct Record {
  std::vector<std::vector<std::uint32_t>> losses;  ///< [rank][step * micro_steps + micro_step]
  std::vector<std::uint64_t> norms;                ///< [step]
  std::vector<std::pair<std::string, at::Tensor>> parameters;
};

/// The model every run starts from.
inline TinyGpt make_model(std::uint64_t seed = 42) {
  TinyGpt model{TinyGptConfig{}};
  seed_parameters(*model, seed);
  return model;
}

inline std::vector<ShardSpan> whole_spans(const torch::nn::Module& module) {
  std::vector<ShardSpan> spans;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& leaf = item.value();
    spans.push_back({item.key(), leaf.sizes().vec(), 0, leaf.numel(), leaf, true});
  }
  return spans;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Rule rule, const std::vector<ShardSpan>& spans) {
  const auto groups = optim::decay_groups(spans, 0.1);
  // A large eps: the gradient of a key's bias is zero but for rounding, and AdamW with a small eps
  // would blow that noise up to full steps, which no two kinds of arithmetic share.
  const optim::AdamWOptions adamw{.lr = 3e-3, .betas = {0.9, 0.95}, .eps = 1e-5};
  const optim::SGDOptions sgd{.lr = 0.05, .momentum = 0.9};
  const auto torch_groups = [&](const auto& options) {
    std::vector<torch::optim::OptimizerParamGroup> result;
    for (const auto& group : groups) {
      auto own = options;
      own.weight_decay(*group.weight_decay);
      result.emplace_back(group.params, std::make_unique<decltype(own)>(own));
    }
    return result;
  };
  switch (rule) {
    case Rule::kAdamW: return std::make_unique<optim::AdamW>(groups, adamw);
    case Rule::kSgd: return std::make_unique<optim::SGD>(groups, sgd);
    case Rule::kTorchAdamW: {
      const auto options = torch::optim::AdamWOptions(adamw.lr).betas({0.9, 0.95}).eps(1e-5);
      return std::make_unique<torch::optim::AdamW>(torch_groups(options), options);
    }
    case Rule::kTorchSgd: {
      const auto options = torch::optim::SGDOptions(sgd.lr).momentum(0.9);
      return std::make_unique<torch::optim::SGD>(torch_groups(options), options);
    }
  }
  return nullptr;
}

inline WarmupCosineOptions schedule_of(const Recipe& recipe) {
  return {.warmup_steps = 3, .total_steps = recipe.steps, .min_lr = 1e-4};
}

/// Forward and backward of one micro-batch; returns the bits of the loss.
template <class Forward>
std::uint32_t train_micro_batch(const Recipe& recipe, Forward& forward, int rank, int step,
                                int micro_step) {
  const auto batch = tiny_batch(rank, step * recipe.micro_steps + micro_step);
  const auto loss = tiny_loss(forward(batch.tokens), batch.targets) / recipe.micro_steps;
  loss.backward();
  return std::bit_cast<std::uint32_t>(loss.template item<float>());
}

/// One process: computes the ranks' gradients one after the other, adds them in rank order and
/// divides once.
inline Record run_one_process(const Recipe& recipe) {
  at::set_num_threads(1);
  auto model = make_model();
  const auto spans = whole_spans(*model);
  const auto optimizer = make_optimizer(recipe.rule, spans);
  WarmupCosine schedule(*optimizer, schedule_of(recipe));
  Record record;
  record.losses.resize(static_cast<std::size_t>(recipe.world));
  for (int step = 0; step < recipe.steps; ++step) {
    mean_gradients(model->parameters(), recipe.world, [&](int rank) {
      for (int micro_step = 0; micro_step < recipe.micro_steps; ++micro_step) {
        record.losses[static_cast<std::size_t>(rank)].push_back(
            train_micro_batch(recipe, model, rank, step, micro_step));
      }
    });
    record.norms.push_back(std::bit_cast<std::uint64_t>(clip_grad_norm_(model, recipe.max_norm)));
    optimizer->step();
    schedule.step();
  }
  for (const auto& span : spans) record.parameters.emplace_back(span.name, span.leaf.detach());
  return record;
}

/// What one rank of a wrapped model gets in the same recipe, compared with the one process: losses
/// and norms as bits; the parameters' slices as bits, or to `tolerance` if above 0.
template <class Wrapped>
void train_and_compare(const Recipe& recipe, Wrapped& wrapped, int rank, const Record& expected,
                       double tolerance = 0) {
  const auto spans = wrapped.shard_spans();
  const auto optimizer = make_optimizer(recipe.rule, spans);
  WarmupCosine schedule(*optimizer, schedule_of(recipe));
  const auto& losses = expected.losses[static_cast<std::size_t>(rank)];
  for (int step = 0; step < recipe.steps; ++step) {
    optimizer->zero_grad();
    for (int micro_step = 0; micro_step < recipe.micro_steps; ++micro_step) {
      std::uint32_t loss = 0;
      if (micro_step + 1 < recipe.micro_steps) {
        const auto pause = wrapped.no_sync();
        loss = train_micro_batch(recipe, wrapped, rank, step, micro_step);
      } else {
        loss = train_micro_batch(recipe, wrapped, rank, step, micro_step);
      }
      const auto at = static_cast<std::size_t>(step * recipe.micro_steps + micro_step);
      if (tolerance == 0) check_equal(loss, losses[at], concat("loss of step ", step));
    }
    const double norm = clip_grad_norm_(wrapped, recipe.max_norm);
    if (tolerance == 0) {
      check_equal(std::bit_cast<std::uint64_t>(norm),
                  expected.norms[static_cast<std::size_t>(step)],
                  concat("gradient norm of step ", step, ", ", norm));
    }
    optimizer->step();
    schedule.step();
  }
  check_equal(spans.size(), expected.parameters.size(), "number of parameters");
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto& [name, value] = expected.parameters[i];
    check_equal(spans[i].name, name, "name");
    const auto slice = value.flatten().narrow(0, spans[i].begin, spans[i].numel);
    if (tolerance == 0) {
      check_same_bits(spans[i].leaf.detach().flatten(), slice, name);
    } else {
      check_close(spans[i].leaf.detach().flatten(), slice, tolerance, name);
    }
  }
}

/// No collective of these small models takes long, but a loaded machine may let a rank wait.
inline CommunicatorOptions comm_options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  return options;
}

/// Every recipe of the parity table at one world size: both optimizers, with and without
/// accumulation, always with clipping and a schedule.
inline std::vector<Recipe> recipes(int world) {
  return {{.rule = Rule::kAdamW, .world = world},
          {.rule = Rule::kSgd, .world = world},
          {.rule = Rule::kAdamW, .world = world, .micro_steps = 3},
          {.rule = Rule::kSgd, .world = world, .micro_steps = 2}};
}

/// torch's own optimizers on a wrapped model give what Convoy's give in one process, to 1e-6.
template <template <class> class Wrapper, class Options>
void check_stock_optimizers(const Options& options) {
  for (const auto& [stock, ours] :
       {std::pair{Rule::kTorchAdamW, Rule::kAdamW}, std::pair{Rule::kTorchSgd, Rule::kSgd}}) {
    const auto expected = run_one_process({.rule = ours, .world = 3});
    run_ranks(
        3,
        [&, rule = stock](Rank& r) {
          at::set_num_threads(1);
          auto model = make_model();
          Wrapper wrapped(model, r.comm_ptr(), options);
          train_and_compare({.rule = rule, .world = 3}, wrapped, r.rank(), expected, 1e-6);
        },
        comm_options());
  }
}

}  // namespace convoy::test
