// The group of one rank: every reduction is the identity, and nothing waits.
#include "comm/self_communicator.h"

#include "comm/write_backs.h"
#include "convoy/base/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace convoy {
namespace {

class DoneWork final : public Work {
 public:
  bool is_completed() override { return true; }
  void wait() override {}
};

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(CommunicatorOptions options, std::shared_ptr<Session> session)
      : Communicator(0, 1, std::move(options)), session_(std::move(session)) {}

  bool shares_memory() const noexcept override { return true; }
  void poll() override {}
  void abort(const Error& error) noexcept override {
    const std::lock_guard lock(state_mutex_);
    if (!failure_) failure_ = error;
  }
  std::optional<Error> failure() const override {
    const std::lock_guard lock(state_mutex_);
    return failure_;
  }
  CommStats stats() const override {
    const std::lock_guard lock(state_mutex_);
    return stats_;
  }
  void reset_stats() override {
    const std::lock_guard lock(state_mutex_);
    stats_.clear();
  }

 private:
  WorkPtr do_all_reduce(const OpContext& context, at::Tensor tensor, ReduceOp /*op*/) override {
    return run(context, tensor, tensor);
  }
  WorkPtr do_reduce_scatter(const OpContext& context, at::Tensor output, at::Tensor input,
                            ReduceOp /*op*/) override {
    return run(context, output, input);
  }
  WorkPtr do_all_gather(const OpContext& context, std::vector<at::Tensor> outputs,
                        at::Tensor input) override {
    return run(context, outputs.front(), input);
  }
  WorkPtr do_broadcast(const OpContext& context, at::Tensor tensor, int /*root*/) override {
    return run(context, tensor, tensor);
  }
  WorkPtr do_barrier(const OpContext& context) override { return run(context, {}, {}); }
  at::Tensor do_allocate(const OpContext& context, std::int64_t numel, at::ScalarType dtype,
                         bool /*shared*/) override {
    auto tensor = at::zeros({numel}, at::TensorOptions().dtype(dtype));
    run(context, tensor, tensor);
    return tensor;
  }

  // Moves input to output, which are the same tensor or do not overlap.
  WorkPtr run(const OpContext& context, const at::Tensor& output, const at::Tensor& input) {
    require_unfailed(context);
    session_->mark_operation(to_string(context.kind), context.sequence, context.tag);
    const auto bytes = output.defined() ? static_cast<std::int64_t>(output.nbytes()) : 0;
    const trace::Span span(trace_sink(), to_string(context.kind), "comm", context.tag, bytes);
    std::int64_t copied = 0;
    if (bytes > 0 && output.const_data_ptr() != input.const_data_ptr()) {
      const at::NoGradGuard no_grad;
      output.detach().view({-1}).copy_(input.detach().view({-1}));
      copied = bytes;
    }
    auto write_backs = context.write_backs;
    for (const auto& item : write_backs) copied += static_cast<std::int64_t>(item.source.nbytes());
    write_back(write_backs);
    const std::lock_guard lock(state_mutex_);
    auto& stats = stats_[context.kind];
    ++stats.calls;
    stats.payload_bytes += static_cast<std::uint64_t>(bytes);
    stats.copied_bytes += static_cast<std::uint64_t>(copied);
    return std::make_shared<DoneWork>();
  }

  void require_unfailed(const OpContext& context) const {
    auto cause = failure();
    if (!cause) cause = session_->failure();
    if (!cause) return;
    throw Error(ErrorKind::kFailed,
                concat(to_string(context.kind), " on communicator '", options().name,
                       "', which failed earlier: ", cause->what()),
                cause->rank());
  }

  std::shared_ptr<Session> session_;
  mutable std::mutex state_mutex_;
  std::optional<Error> failure_;
  CommStats stats_;
};

}  // namespace

CommunicatorPtr make_self_communicator(CommunicatorOptions options,
                                       std::shared_ptr<Session> session) {
  return std::make_shared<SelfCommunicator>(std::move(options), std::move(session));
}

}  // namespace convoy
