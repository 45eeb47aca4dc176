// Training by one process that adds the ranks' gradients in rank order, and the same with DDP.
#pragma once

#include "convoy/base/check.h"
#include "convoy/ddp/ddp.h"
#include "ddp/models.h"
#include "support/check.h"
#include "support/reference.h"

#include <torch/torch.h>

#include <vector>

namespace convoy::test {

inline constexpr int kParitySteps = 5;
inline constexpr int kMicroSteps = 3;

struct Run {
  std::vector<std::vector<at::Tensor>> gradients;  ///< By step, then by parameter.
  std::vector<at::Tensor> parameters;              ///< At the end.
};

inline void keep_gradients(Run& run, const std::vector<at::Tensor>& parameters) {
  run.gradients.emplace_back();
  for (const auto& parameter : parameters) {
    const auto& grad = parameter.grad();
    run.gradients.back().push_back(grad.defined() ? grad.clone() : at::Tensor());
  }
}

inline void keep_parameters(Run& run, const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) run.parameters.push_back(parameter.detach().clone());
}

/// `micro_steps` backwards a step add up on each rank before the mean is taken.
inline Run one_process(int world, int micro_steps) {
  auto model = seeded<OddNet>();
  const auto parameters = model->parameters();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  Run run;
  for (int step = 0; step < kParitySteps; ++step) {
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

inline Run with_ddp(const CommunicatorPtr& comm, int micro_steps,
                    DistributedDataParallelOptions options, bool set_to_none) {
  auto model = comm->rank() == 0 ? seeded<OddNet>() : seeded<OddNet>(1000);
  DistributedDataParallel ddp(model, comm, options);
  const auto parameters = model->parameters();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  Run run;
  for (int step = 0; step < kParitySteps; ++step) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      const int batch = step * micro_steps + micro;
      const auto backward = [&] {
        loss_of(ddp(batch_of(comm->rank(), batch, 5)), comm->rank(), batch).backward();
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

inline void check_same_run(const Run& actual, const Run& expected) {
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

}  // namespace convoy::test
