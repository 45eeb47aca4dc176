// Training loops that FSDP tests share: the same model in one process and sharded over ranks.
#pragma once

#include "convoy/comm/run_ranks.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/state_dict.h"
#include "support/check.h"
#include "support/reference.h"
#include "support/tiny_gpt.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace convoy::test {

using namespace std::chrono_literals;

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPtr(std::vector<at::Tensor>)>;

/// Momentum SGD with powers of two as factors: then every product is exact, so that the vector body
/// and the scalar tail of ATen's kernels, which round differently, agree.
inline OptimizerPtr exact_sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.125).momentum(0.5));
}

/// Short limits, so that a test that goes wrong ends.
inline CommunicatorOptions short_timeout() {
  CommunicatorOptions options;
  options.timeout = 60s;
  return options;
}

/// Ranks as threads, one torch thread each.
inline void ranks(int world, const std::function<void(Rank&)>& body,
                  CommunicatorOptions options = short_timeout()) {
  run_ranks(
      world,
      [&](Rank& rank) {
        at::set_num_threads(1);
        body(rank);
      },
      std::move(options));
}

/// Returns when every rank is at the place called `place` and done with every operation before it,
/// so that a rank that then fails the group fails no operation that another only has not noticed to
/// be done.
inline void meet(Rank& rank, const std::string& place) {
  const auto store = rank.job().store();
  std::vector<std::string> keys;
  for (int r = 0; r < rank.size(); ++r) keys.push_back(concat("met/", place, "/", r));
  store->set(keys[static_cast<std::size_t>(rank.rank())], "here");
  store->wait(keys, Deadline::after(60s));
}

inline const char* path_name(bool shared) { return shared ? "shared gather" : "private gather"; }

template <typename Holder>
StateDict plain_state(const Holder& model) {
  StateDict state;
  for (const auto& item : model->named_parameters()) {
    state.insert(item.key(), item.value().detach().clone());
  }
  for (const auto& item : model->named_buffers()) state.insert(item.key(), item.value().clone());
  return state;
}

/// Throws unless both hold the same names with the same bits.
inline void check_same_state(const StateDict& left, const StateDict& right,
                             const std::string& what = {}) {
  check_equal(left.size(), right.size(), what + ": number of names");
  for (const auto& item : left) {
    const at::Tensor* other = right.find(item.key());
    check(other != nullptr, what + ": '" + item.key() + "' is missing");
    check_same_bits(item.value(), *other, what + ": " + item.key());
  }
}

inline void check_close_state(const StateDict& left, const StateDict& right, double tolerance,
                              const std::string& what = {}) {
  check_equal(left.size(), right.size(), what + ": number of names");
  for (const auto& item : left) {
    check_close(item.value(), right[item.key()], tolerance, what + ": " + item.key());
  }
}

/// What a training run is made of. `Holder` is a unit; `loss(model, rank, step)` runs one forward.
template <typename Holder>
struct Training {
  std::function<Holder()> make;
  std::function<at::Tensor(Holder&, int rank, int step)> loss;
  MakeOptimizer optimizer = exact_sgd;
  int steps = 5;
};

/// The reference: one process that adds the ranks' gradients in rank order.
template <typename Holder>
StateDict train_alone(const Training<Holder>& training, int world) {
  Holder model = training.make();
  const auto parameters = model->parameters();
  const auto optimizer = training.optimizer(parameters);
  for (int step = 0; step < training.steps; ++step) {
    mean_gradients(parameters, world,
                   [&](int rank) { training.loss(model, rank, step).backward(); });
    optimizer->step();
  }
  return plain_state(model);
}

/// The same, sharded over `world` ranks; rank 0's full state.
template <typename Holder>
StateDict train_sharded(const Training<Holder>& training, int world, const fsdp::Options& options) {
  StateDict state;
  ranks(world, [&](Rank& rank) {
    Holder model = training.make();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
    const auto optimizer = training.optimizer(model->parameters());
    for (int step = 0; step < training.steps; ++step) {
      training.loss(model, rank.rank(), step).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    StateDict mine = full_state_dict(fsdp);
    check(rank.rank() == 0 || mine.is_empty(), "only rank 0 gets the state");
    if (rank.rank() == 0) state = std::move(mine);
  });
  return state;
}

/// The small transformer on its own batches.
inline Training<TinyGpt> tiny_training(TinyGptConfig config = {}, int steps = 5) {
  return {.make =
              [config] {
                TinyGpt model(config);
                seed_parameters(*model, 7);
                return model;
              },
          .loss =
              [config](TinyGpt& model, int rank, int step) {
                const TinyBatch batch = tiny_batch(rank, step, config);
                return tiny_loss(model(batch.tokens), batch.targets);
              },
          .optimizer = exact_sgd,
          .steps = steps};
}

/// Trains alone and sharded both ways and compares every bit.
template <typename Holder>
void check_parity(const Training<Holder>& training, int world, fsdp::Options options = {}) {
  const StateDict expected = train_alone(training, world);
  for (const bool shared : {true, false}) {
    options.shared_gather = shared;
    check_same_state(train_sharded(training, world, options), expected,
                     concat("world ", world, ", ", path_name(shared)));
  }
}

}  // namespace convoy::test
