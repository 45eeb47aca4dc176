// Runs the held-out windows through the model without gradients.
#include "programs/train_gpt/evaluate.h"

#include "convoy/base/check.h"

namespace convoy::train_gpt {
namespace {

/// Mean loss of each row, as float64 [rows].
at::Tensor row_losses(const at::Tensor& logits, const at::Tensor& targets) {
  const auto losses =
      at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::None);
  return losses.view(targets.sizes()).to(at::kDouble).mean(1);
}

}  // namespace

Evaluation evaluate(Strategy& strategy, Communicator& comm, const data::TokenWindows& windows,
                    const data::EvaluationPlan& plan) {
  at::NoGradGuard no_grad;
  strategy.model()->eval();
  auto sums = at::zeros({2}, at::kDouble);  // Of losses, of windows.
  for (std::int64_t micro_step = 0; micro_step < plan.micro_steps; ++micro_step) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < plan.micro_batch; ++row) {
      rows.push_back(plan.window(micro_step, comm.rank(), row));
    }
    const data::TokenBatch batch = windows.validation(rows);
    const auto losses = row_losses(strategy.forward(batch.inputs), batch.targets);
    const auto weights = batch.weights.to(at::kDouble);
    sums[0] += (losses * weights).sum();
    sums[1] += weights.sum();
  }
  strategy.model()->train();
  comm.all_reduce(sums, ReduceOp::kSum, {.tag = "evaluation"})->wait();
  const auto counted = static_cast<std::int64_t>(sums[1].item<double>());
  CONVOY_CHECK(counted == plan.windows, "evaluated ", counted, " of ", plan.windows, " windows");
  return {sums[0].item<double>() / static_cast<double>(counted), counted};
}

}  // namespace convoy::train_gpt
