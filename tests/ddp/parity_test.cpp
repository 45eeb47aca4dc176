// DDP against one process that adds the ranks' gradients in rank order and divides once: the bits.
#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"
#include "support/reference.h"

#include <torch/torch.h>

#include <vector>

namespace convoy::test {
namespace {

constexpr int kSteps = 5;
constexpr int kMicroSteps = 3;

struct Run {
  std::vector<std::vector<at::Tensor>> gradients;  ///< By step, then by parameter.
  std::vector<at::Tensor> parameters;              ///< At the end.
};

void keep_gradients(Run& run, const std::vector<at::Tensor>& parameters) {
  run.gradients.emplace_back();
  for (const auto& parameter : parameters) {
    const auto& grad = parameter.grad();
    run.gradients.back().push_back(grad.defined() ? grad.clone() : at::Tensor());
  }
}

void keep_parameters(Run& run, const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) run.parameters.push_back(parameter.detach().clone());
}

/// `micro_steps` backwards a step add up on each rank before the mean is taken.
Run one_process(int world, int micro_steps) {
  auto model = seeded<OddNet>();
  const auto parameters = model->parameters();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  Run run;
  for (int step = 0; step < kSteps; ++step) {
    mean_gradients(parameters, world, [&](int rank) {
      for (int micro = 0; micro < micro_steps; ++micro) {
        const int batch = step * micro_steps + micro;
        loss_of(model(batch_of(rank, batch, 5)), rank, batch).backward();
      }
    });
    keep_gradients(run, parameters);
    sgd.step();
  }
  keep_parameters(run, parameters);
  return run;
}

Run with_ddp(Rank& rank, int micro_steps, DistributedDataParallelOptions options,
             bool set_to_none) {
  auto model = rank.rank() == 0 ? seeded<OddNet>() : seeded<OddNet>(1000);
  DistributedDataParallel ddp(model, rank.comm_ptr(), options);
  const auto parameters = model->parameters();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  Run run;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      const int batch = step * micro_steps + micro;
      const auto backward = [&] {
        loss_of(ddp(batch_of(rank.rank(), batch, 5)), rank.rank(), batch).backward();
      };
      if (micro + 1 < micro_steps) {
        const auto pause = ddp.no_sync();
        backward();
      } else {
        backward();
      }
    }
    keep_gradients(run, parameters);
    sgd.step();
    sgd.zero_grad(set_to_none);
  }
  keep_parameters(run, parameters);
  return run;
}

void check_same_run(const Run& actual, const Run& expected) {
  for (std::size_t step = 0; step < expected.gradients.size(); ++step) {
    for (std::size_t i = 0; i < expected.gradients[step].size(); ++i) {
      check_same_bits(actual.gradients[step][i], expected.gradients[step][i],
                      concat("gradient ", i, " of step ", step));
    }
  }
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    check_same_bits(actual.parameters[i], expected.parameters[i], concat("parameter ", i));
  }
}

}  // namespace

TEST_CASE("DDP equals one process in bits at worlds 1 to 5 and any bucket size") {
  at::set_num_threads(1);
  for (int world = 1; world <= 5; ++world) {
    const Run expected = one_process(world, 1);
    // A bucket for each parameter, a few together, two sizes that cut differently, all in one.
    for (const double cap : {1e-6, 3e-4, 7e-4, 25.0}) {
      run_ranks(world, [&](Rank& rank) {
        at::set_num_threads(1);
        check_same_run(with_ddp(rank, 1, {.bucket_cap_mb = cap}, true), expected);
      });
    }
    run_ranks(world, [&](Rank& rank) {
      check_same_run(with_ddp(rank, 1, {.first_bucket_cap_mb = 1e-4}, true), expected);
    });
  }
}

TEST_CASE("gradients zeroed in place give the same bits") {
  for (const int world : {1, 2, 3}) {
    const Run expected = one_process(world, 1);
    run_ranks(world, [&](Rank& rank) {
      check_same_run(with_ddp(rank, 1, {.bucket_cap_mb = 3e-4}, false), expected);
    });
  }
}

TEST_CASE("accumulation under no_sync equals one process in bits") {
  for (const int world : {1, 2, 3, 5}) {
    const Run expected = one_process(world, kMicroSteps);
    for (const bool set_to_none : {true, false}) {
      run_ranks(world, [&](Rank& rank) {
        check_same_run(with_ddp(rank, kMicroSteps, {.bucket_cap_mb = 3e-4}, set_to_none), expected);
      });
    }
  }
}

TEST_CASE("searching for unused parameters changes no bits where all are used") {
  const Run expected = one_process(3, 1);
  run_ranks(3, [&](Rank& rank) {
    check_same_run(with_ddp(rank, 1, {.bucket_cap_mb = 3e-4, .find_unused_parameters = true}, true),
                   expected);
  });
}

}  // namespace convoy::test
