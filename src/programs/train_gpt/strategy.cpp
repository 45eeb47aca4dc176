// The strategies over the library's wrappers.
#include "programs/train_gpt/strategy.h"

#include "convoy/base/check.h"
#include "convoy/ddp/ddp.h"
#include "convoy/ddp/memory_plan.h"
#include "convoy/ddp/state_dict.h"
#include "convoy/ddp/zero.h"
#include "convoy/fsdp/fsdp.h"
#include "convoy/fsdp/model_plan.h"
#include "convoy/fsdp/state_dict.h"
#include "convoy/optim/clip_grad_norm.h"

namespace convoy::train_gpt {
namespace {

class Single final : public Strategy {
 public:
  explicit Single(GPT model) : plan_(ddp::plan_memory(*model)), model_(std::move(model)) {
    plan_.gradient_buffers = 0;  // no buckets
  }

  GPT& model() override { return model_; }
  at::Tensor forward(const at::Tensor& tokens) override { return model_(tokens); }
  std::shared_ptr<void> no_sync() override { return nullptr; }
  double clip(double max_norm) override { return clip_grad_norm_(model_, max_norm); }
  std::vector<ShardSpan> spans() override {
    std::vector<ShardSpan> spans;
    for (const auto& item : model_->named_parameters()) {
      spans.push_back(whole_span(item.key(), item.value()));
    }
    return spans;
  }
  void for_each_full_parameter(const Visit& visit) override {
    for (const auto& item : model_->named_parameters()) visit(item.key(), item.value().detach());
  }

  const MemoryPlan& memory_plan() const override { return plan_; }

 private:
  MemoryPlan plan_;
  GPT model_;
};

class Ddp final : public Strategy {
 public:
  Ddp(GPT model, CommunicatorPtr comm, const Options& options)
      : plan_(ddp::plan_memory(*model)),
        ddp_(std::move(model), std::move(comm), {.bucket_cap_mb = options.bucket_mb}) {}

  GPT& model() override { return ddp_.module(); }
  at::Tensor forward(const at::Tensor& tokens) override { return ddp_(tokens); }
  std::shared_ptr<void> no_sync() override { return std::make_shared<ddp::NoSync>(ddp_.no_sync()); }
  double clip(double max_norm) override { return clip_grad_norm_(ddp_, max_norm); }
  std::vector<ShardSpan> spans() override { return ddp_.shard_spans(); }
  void for_each_full_parameter(const Visit& visit) override {
    ddp::for_each_full_parameter(ddp_.replica(), visit);
  }

  const MemoryPlan& memory_plan() const override { return plan_; }
  ddp::Replica& replica() { return ddp_.replica(); }

 private:
  MemoryPlan plan_;
  DistributedDataParallel<GPT> ddp_;
};

/// DDP whose optimizer state is cut over the ranks.
class Zero1 final : public Strategy {
 public:
  Zero1(GPT model, CommunicatorPtr comm, const Options& options)
      : ddp_(std::move(model), std::move(comm), options), shards_(ddp_.replica()) {
    plan_ = ddp_.memory_plan();
    plan_.optimizer = 0;
    for (const ShardSpan& span : shards_.spans()) {
      if (!span.leaf.requires_grad()) continue;
      plan_.optimizer += static_cast<std::int64_t>(span.leaf.nbytes()) * kAdamStates;
    }
  }

  GPT& model() override { return ddp_.model(); }
  at::Tensor forward(const at::Tensor& tokens) override { return ddp_.forward(tokens); }
  std::shared_ptr<void> no_sync() override { return ddp_.no_sync(); }
  double clip(double max_norm) override { return ddp_.clip(max_norm); }
  std::vector<ShardSpan> spans() override { return shards_.spans(); }
  std::vector<ShardSpan> held_spans() override { return ddp_.spans(); }
  void step(torch::optim::Optimizer& optimizer) override {
    shards_.step(optimizer);
    shards_.zero_grad(/*set_to_none=*/true);
  }
  void for_each_full_parameter(const Visit& visit) override { ddp_.for_each_full_parameter(visit); }

  const MemoryPlan& memory_plan() const override { return plan_; }

 private:
  Ddp ddp_;
  ddp::ZeroShards shards_;
  MemoryPlan plan_;
};

fsdp::MixedPrecision mixed_precision(ComputeDtype dtype) {
  fsdp::MixedPrecision mixed;  // Gradients are reduced in float32.
  if (dtype == ComputeDtype::kBFloat16) mixed.param_dtype = at::kBFloat16;
  return mixed;
}

fsdp::Options fsdp_options(const Options& options, const Communicator& comm) {
  return {.wrap = wrap_units_of<Block>(),
          .reshard_after_forward = options.reshard_after_forward,
          .shared_gather = options.shared_gather && comm.shares_memory(),
          .mixed_precision = mixed_precision(options.config.dtype)};
}

class Fsdp final : public Strategy {
 public:
  Fsdp(GPT model, CommunicatorPtr comm, const Options& options)
      : Fsdp(model, comm, fsdp_options(options, *comm)) {}

  GPT& model() override { return fsdp_.module(); }
  at::Tensor forward(const at::Tensor& tokens) override { return fsdp_(tokens); }
  std::shared_ptr<void> no_sync() override {
    return std::make_shared<fsdp::NoSync>(fsdp_.no_sync());
  }
  double clip(double max_norm) override { return clip_grad_norm_(fsdp_, max_norm); }
  std::vector<ShardSpan> spans() override { return fsdp_.shard_spans(); }
  std::int64_t cast_parameter_bytes() const override { return fsdp_.cast_parameter_bytes(); }
  void for_each_full_parameter(const Visit& visit) override {
    fsdp::for_each_full_parameter(fsdp_, visit);
  }

  const MemoryPlan& memory_plan() const override { return plan_; }

 private:
  Fsdp(const GPT& model, const CommunicatorPtr& comm, const fsdp::Options& options)
      : plan_(fsdp::plan_memory(*model, comm->size(), comm->rank(), options)),
        fsdp_(model, comm, options) {}

  MemoryPlan plan_;
  FullyShardedDataParallel<GPT> fsdp_;
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(StrategyKind kind, GPT model, CommunicatorPtr comm,
                                        const Options& options) {
  switch (kind) {
    case StrategyKind::kSingle:
      CONVOY_REQUIRE(comm->size() == 1, kInvalidArgument, "--strategy single is one process, but ",
                     comm->size(), " ranks were started; use --strategy ddp or fsdp, or one rank");
      return std::make_unique<Single>(std::move(model));
    case StrategyKind::kDdp:
      return std::make_unique<Ddp>(std::move(model), std::move(comm), options);
    case StrategyKind::kZero1:
      return std::make_unique<Zero1>(std::move(model), std::move(comm), options);
    case StrategyKind::kFsdp:
      return std::make_unique<Fsdp>(std::move(model), std::move(comm), options);
  }
  throw Error(ErrorKind::kInternal, "a strategy without a name");
}

}  // namespace convoy::train_gpt
