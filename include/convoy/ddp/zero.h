// ZeRO stage 1 over DistributedDataParallel: each rank keeps and steps a part of the optimizer.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/ddp/ddp.h"
#include "convoy/flat/layout.h"
#include "convoy/flat/shard_span.h"

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace convoy::ddp {

/// The trainable parameters of a replica in flat buffers, group by group, cut into equal slices:
/// rank r steps slice r of each and gets the others from their owners. No optimizer in here.
/// Thread rule: that of the replica.
class ZeroShards {
 public:
  /// Collective. Moves the parameters (they stay the same tensors with the same values) into memory
  /// of the communicator, in groups of about `group_bytes`. Error, before anything has moved:
  /// kInvalidArgument naming a parameter that is not contiguous.
  explicit ZeroShards(Replica& replica, std::int64_t group_bytes = std::int64_t{25} << 20);

  /// What this rank steps of each trainable parameter, as under FSDP: leaves of shape [rows here,
  /// ...], maybe empty, whose gradients are views of the mean gradients of the replica, as of now.
  /// Frozen parameters are in it whole.
  std::vector<ShardSpan> spans() const;
  /// Gives the leaves their gradients, steps an optimizer over them, and gathers. Collective: a
  /// step that throws on one rank fails the communicator on all.
  void step(torch::optim::Optimizer& optimizer);
  /// Gets the slices that other ranks have stepped. Collective.
  void gather();
  /// Drops the gradients of the replica's parameters (or zeroes them in place) and of the leaves.
  void zero_grad(bool set_to_none);

  /// The parameters of the replica that are stepped, whole.
  std::vector<at::Tensor> parameters() const;
  const CommunicatorPtr& communicator() const noexcept { return comm_; }

 private:
  struct Group {
    FlatLayout layout;
    at::Tensor full;                  ///< [layout.total_numel()]
    std::vector<std::size_t> places;  ///< Its parameters, in replica.parameters().
  };
  struct Part {
    std::string name;
    at::Tensor parameter;
    at::Tensor leaf;       ///< Undefined for a frozen parameter.
    ParameterPiece piece;  ///< Of a trainable one.
  };

  void plan_groups(std::int64_t group_bytes);
  void move_into(Group& group);
  /// Gives the leaves their parts of the mean gradients, as of now.
  void share_gradients() const;
  void fail(const std::exception& cause) noexcept;

  CommunicatorPtr comm_;
  std::vector<Part> parts_;
  std::vector<Group> groups_;
};

}  // namespace convoy::ddp

namespace convoy {

/// An optimizer whose state is cut over the ranks (ZeRO stage 1, Rajbhandari et al. 2020; PyTorch's
/// ZeroRedundancyOptimizer): gradients are averaged by DistributedDataParallel as ever, each rank
/// steps its part of the parameters, and the parts are exchanged. State and time of a step are
/// divided by the world size, bits are those of DistributedDataParallel with the same optimizer,
/// which must step each element on its own (Adam, SGD; not LBFGS).
///
///     convoy::DistributedDataParallel ddp(model, comm);
///     convoy::ZeroRedundancyOptimizer<convoy::optim::AdamW> adam(
///         ddp, [](const auto& spans) {
///           return convoy::optim::AdamW(convoy::decay_groups(spans, 0.1), {.lr = 3e-4});
///         });
///     auto loss = lossfn(ddp(x), y);
///     loss.backward();
///     convoy::clip_grad_norm_(ddp, 1.0);
///     adam.step();
///     adam.zero_grad();
///
/// - step() and zero_grad() of this class, not of the optimizer inside: that one sees slices only.
/// - Parameters change their address when this is made; they stay the same tensors.
/// - Only this class may write parameters between steps: what a rank writes into a slice of another
///   rank is overwritten by the next step.
///
/// Thread rule: that of the wrapper.
template <class Optimizer>
class ZeroRedundancyOptimizer {
 public:
  /// Collective. `make` gets the spans that this rank steps (see decay_groups) and returns the
  /// optimizer over their leaves. Error: kInvalidArgument naming a parameter that is not
  /// contiguous.
  template <class Holder, class Make>
  requires std::invocable < Make, const std::vector<ShardSpan>
  & > ZeroRedundancyOptimizer(DistributedDataParallel<Holder>& ddp, Make&& make)
      : shards_(ddp.replica()),
  optimizer_(std::forward<Make>(make)(shards_.spans())) {}
  /// Collective. An Optimizer over all leaves, with one set of options.
  template <class Holder, class Options>
  requires(!std::invocable<Options, const std::vector<ShardSpan>&>)
      ZeroRedundancyOptimizer(DistributedDataParallel<Holder>& ddp, Options options)
      : shards_(ddp.replica()), optimizer_(trainable(shards_.spans()), std::move(options)) {}

  /// Collective. A step that throws on one rank fails the communicator on all.
  void step() { shards_.step(optimizer_); }
  void zero_grad(bool set_to_none = true) { shards_.zero_grad(set_to_none); }

  /// For its groups (learning rates) and state.
  Optimizer& optimizer() noexcept { return optimizer_; }
  /// What this rank steps, with the gradients of now: for checkpoints.
  std::vector<ShardSpan> shard_spans() const { return shards_.spans(); }
  /// The model's parameters that the ranks step together, whole.
  std::vector<at::Tensor> stepped_parameters() const { return shards_.parameters(); }
  const CommunicatorPtr& communicator() const noexcept { return shards_.communicator(); }

 private:
  static std::vector<at::Tensor> trainable(const std::vector<ShardSpan>& spans) {
    std::vector<at::Tensor> leaves;
    for (const ShardSpan& span : spans) {
      if (span.leaf.requires_grad()) leaves.push_back(span.leaf);
    }
    return leaves;
  }

  ddp::ZeroShards shards_;
  Optimizer optimizer_;
};

}  // namespace convoy
