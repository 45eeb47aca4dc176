// Forward, backward, clip, update.
#include "programs/train_gpt/step.h"

#include <algorithm>
#include <chrono>

namespace convoy::train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

double wait_seconds(const CommStats& stats) {
  double sum = 0;
  for (const auto& [kind, one] : stats) sum += one.wait_s;
  return sum;
}

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Stepper::Stepper(Strategy& strategy, Communicator& comm, torch::optim::Optimizer& optimizer,
                 profile::AllocationCounter& allocations, profile::OverlapMeter& overlap,
                 const data::BatchPlan& plan, double max_norm, trace::Sink* trace)
    : strategy_(strategy),
      comm_(comm),
      optimizer_(optimizer),
      allocations_(allocations),
      overlap_(overlap),
      plan_(plan),
      max_norm_(max_norm),
      trace_(trace) {}

float Stepper::train_micro_batch(const data::TokenBatch& batch, std::int64_t micro_step,
                                 StepResult& result) {
  const auto part = [&](const at::Tensor& rows) {
    return rows.narrow(0, micro_step * plan_.micro_batch, plan_.micro_batch);
  };
  const auto before_forward = allocations_.current();
  allocations_.reset_peak();
  at::Tensor loss;
  {
    const trace::Span span(trace_, "forward", "phase");
    const auto logits = strategy_.forward(part(batch.inputs));
    loss = at::cross_entropy_loss(logits.flatten(0, 1), part(batch.targets).flatten());
  }
  result.activation_bytes = std::max(result.activation_bytes, allocations_.peak() - before_forward);
  const auto value = loss.item<float>();
  if (plan_.micro_steps > 1) loss = loss / static_cast<double>(plan_.micro_steps);
  const trace::Span span(trace_, "backward", "phase");
  overlap_.listen(true);
  loss.backward();
  overlap_.listen(false);
  return value;
}

StepResult Stepper::run(const data::TokenBatch& batch) {
  StepResult result;
  comm_.reset_stats();
  const auto begin = Clock::now();
  for (std::int64_t micro_step = 0; micro_step < plan_.micro_steps; ++micro_step) {
    const bool last = micro_step + 1 == plan_.micro_steps;
    const auto pause = last ? nullptr : strategy_.no_sync();
    result.loss += train_micro_batch(batch, micro_step, result);
  }
  result.loss /= static_cast<double>(plan_.micro_steps);
  const auto backward_end = Clock::now();
  for (const ShardSpan& span : strategy_.held_spans()) {
    if (span.leaf.grad().defined()) {
      result.gradient_bytes += static_cast<std::int64_t>(span.leaf.grad().nbytes());
    }
  }
  const double backward_wait_s = wait_seconds(comm_.stats());
  if (max_norm_ > 0) {
    const trace::Span span(trace_, "clip", "optimizer");
    result.grad_norm = strategy_.clip(max_norm_);
  }
  {
    const trace::Span span(trace_, "optimizer", "optimizer");
    strategy_.step(optimizer_);
  }
  const auto end = Clock::now();
  result.step_s = seconds(end - begin);
  result.optimizer_s = seconds(end - backward_end);
  result.comm = comm_.stats();
  result.optimizer_wait_s = wait_seconds(result.comm) - backward_wait_s;
  overlap_.end_step();
  return result;
}

}  // namespace convoy::train_gpt
