// What differs between one process, DDP and FSDP, and nothing else.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/memory_plan.h"
#include "convoy/flat/shard_span.h"
#include "programs/train_gpt/gpt.h"
#include "programs/train_gpt/options.h"

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace convoy::train_gpt {

/// A model made ready to be trained in one of the strategies. All calls are collective, and made by
/// one thread.
class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual GPT& model() = 0;
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;
  /// While the returned handle lives, backward leaves gradients on this rank: for all but the last
  /// micro-batch of a step.
  virtual std::shared_ptr<void> no_sync() = 0;
  /// Clips the gradients to a total norm of `max_norm`; returns the norm before.
  virtual double clip(double max_norm) = 0;
  /// What this rank was predicted to hold, before the model was wrapped.
  virtual const MemoryPlan& memory_plan() const = 0;
  /// What this rank steps.
  virtual std::vector<ShardSpan> spans() = 0;
  /// What this rank holds, with its gradients.
  virtual std::vector<ShardSpan> held_spans() { return spans(); }
  /// Steps the optimizer that was made over spans() and drops all gradients.
  virtual void step(torch::optim::Optimizer& optimizer) {
    optimizer.step();
    optimizer.zero_grad();
  }
  /// Bytes of parameters in the compute dtype that this rank keeps beside them.
  virtual std::int64_t cast_parameter_bytes() const { return 0; }
  /// Calls `visit` with the name and the full value of each parameter, in registration order, on
  /// rank 0 only; the other ranks help. The value is valid during the call.
  using Visit = std::function<void(std::string_view name, const at::Tensor& value)>;
  virtual void for_each_full_parameter(const Visit& visit) = 0;
};

/// Wraps `model`. Error: kInvalidArgument for kSingle with several ranks.
std::unique_ptr<Strategy> make_strategy(StrategyKind kind, GPT model, CommunicatorPtr comm,
                                        const Options& options);

}  // namespace convoy::train_gpt
