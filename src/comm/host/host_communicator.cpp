// The communicator of ranks on one machine, over memory that they share.
#include "comm/host/host_communicator.h"

#include "comm/host/arena.h"
#include "comm/host/host_group.h"
#include "comm/host/liveness.h"
#include "comm/host/moves.h"
#include "comm/host/op_header.h"
#include "comm/host/progress.h"
#include "comm/host/rendezvous.h"
#include "comm/host/waiting.h"
#include "convoy/base/check.h"
#include "convoy/base/env.h"
#include "convoy/base/hash.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

namespace convoy {
namespace {

// How long a rank that ends its communicator lets peers finish what it has started.
constexpr auto kDrain = std::chrono::seconds(5);

// A call costs microseconds here, memory traffic costs more: what was just written is summed while
// it is still in the cache. On GPT base (57 M parameters, 2 ranks) a step of DDP took 1.00 of the
// time without communication with 4 MiB, 1.05 with 25 MiB.
constexpr std::int64_t kPreferredBytes = std::int64_t{4} << 20;

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(const Job& job, CommunicatorOptions options, Joined joined,
                   std::shared_ptr<MappingCache> cache, const Logger& log)
      : Communicator(job.rank(), job.world_size(), std::move(options)),
        group_(std::make_shared<HostGroup>(this->options().name, rank(), size(), joined.base)),
        session_(job.session()),
        arena_(*group_, std::move(joined.segment), std::move(cache)),
        progress_(*group_, arena_, this->options().trace),
        liveness_(*group_, log),
        waiting_(*group_, progress_, liveness_, log, this->options()) {
    // The job's first failure ends every wait of this group. The callback may run while this object
    // ends, so it holds what it touches.
    on_job_failure_ = session_->on_failure([group = group_, session = session_.get()] {
      if (const auto failure = session->failure()) group->fail(*failure);
    });
  }

  ~HostCommunicator() override {
    on_job_failure_.reset();
    // A rank that unwinds from an exception has nothing more to give; peers must hear of it soon.
    const bool is_unwinding = std::uncaught_exceptions() > 0;
    if (!is_unwinding) {
      waiting_.drain(std::min<std::chrono::nanoseconds>(kDrain, options().timeout));
    }
    group_->leave(is_unwinding);
  }

  bool shares_memory() const noexcept override { return true; }
  std::optional<std::int64_t> preferred_bytes() const noexcept override { return kPreferredBytes; }
  void poll() override {
    if (progress_.is_idle()) return;
    progress_.advance();
    waiting_.look_after_peers();
  }
  void abort(const Error& error) noexcept override { group_->fail(error); }
  std::optional<Error> failure() const override { return group_->failure(); }
  CommStats stats() const override { return progress_.stats(); }
  void reset_stats() override { progress_.reset_stats(); }

  bool is_completed(const Operation& op) noexcept {
    const auto state = progress_.advance(&op).state;
    return state == OpState::kDone || state == OpState::kFailed;
  }
  void wait(const Operation& op);

 private:
  WorkPtr do_all_reduce(const OpContext& context, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const OpContext& context, at::Tensor output, at::Tensor input,
                            ReduceOp op) override;
  WorkPtr do_all_gather(const OpContext& context, std::vector<at::Tensor> outputs,
                        at::Tensor input) override;
  WorkPtr do_broadcast(const OpContext& context, at::Tensor tensor, int root) override;
  WorkPtr do_barrier(const OpContext& context) override;
  at::Tensor do_allocate(const OpContext& context, std::int64_t numel, at::ScalarType dtype,
                         bool shared) override;

  ElementRange do_own_part(OpKind kind, const at::Tensor& tensor) const override;

  Operation prepare(const OpContext& context, const at::Tensor& input);
  WorkPtr start(Operation op);
  OperationPtr start_operation(Operation op);
  [[noreturn]] void throw_failure(const std::string& where);

  std::shared_ptr<HostGroup> group_;
  std::shared_ptr<Session> session_;
  Arena arena_;
  Progress progress_;
  Liveness liveness_;
  Waiting waiting_;
  std::shared_ptr<void> on_job_failure_;
  std::atomic<bool> has_thrown_failure_ = false;
};

class HostWork final : public Work {
 public:
  HostWork(std::shared_ptr<HostCommunicator> communicator, OperationPtr op)
      : communicator_(std::move(communicator)), op_(std::move(op)) {}
  bool is_completed() override { return communicator_->is_completed(*op_); }
  void wait() override { communicator_->wait(*op_); }

 private:
  std::shared_ptr<HostCommunicator> communicator_;
  OperationPtr op_;
};

// The first failure comes with its own text and kind the first time that this rank meets it; what
// is called afterwards was wrong to call.
void HostCommunicator::throw_failure(const std::string& where) {
  const auto cause = group_->failure();
  CONVOY_CHECK(cause, "a failed group has a failure");
  if (!has_thrown_failure_.exchange(true)) throw *cause;
  throw Error(
      ErrorKind::kFailed,
      concat(where, ": communicator '", options().name, "' has failed earlier: ", cause->what()),
      cause->rank());
}

void HostCommunicator::wait(const Operation& op) {
  auto state = progress_.advance(&op).state;
  if (state != OpState::kDone && state != OpState::kFailed) {
    const trace::Span span(trace_sink(), to_string(op.kind()), "wait", op.context.tag);
    const auto begin = std::chrono::steady_clock::now();
    state = waiting_.wait(op);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    progress_.add_wait(op.kind(), waited.count());
  }
  if (state == OpState::kFailed) {
    has_thrown_failure_.store(true);
    throw *group_->failure();
  }
  if (const auto error = progress_.error(op)) throw *error;
}

Operation HostCommunicator::prepare(const OpContext& context, const at::Tensor& input) {
  Operation op{.context = context, .header = make_header(context), .input = input};
  op.own = std::move(op.context.own);  // Released with the input.
  if (!input.defined()) return op;
  op.header.dtype = static_cast<std::int8_t>(input.scalar_type());
  op.header.count = input.numel();
  if (input.nbytes() > 0) {
    op.header.location = arena_.locate(input.const_data_ptr(), input.nbytes());
  }
  return op;
}

OperationPtr HostCommunicator::start_operation(Operation op) {
  if (group_->has_failed()) throw_failure(describe(op.header));
  session_->mark_operation(to_string(op.kind()), op.sequence(), op.context.tag);
  return progress_.start(std::move(op));
}

WorkPtr HostCommunicator::start(Operation op) {
  return std::make_shared<HostWork>(std::static_pointer_cast<HostCommunicator>(shared_from_this()),
                                    start_operation(std::move(op)));
}

ElementRange HostCommunicator::do_own_part(OpKind kind, const at::Tensor& tensor) const {
  if (tensor.numel() == 0 || arena_.locate(tensor.const_data_ptr(), tensor.nbytes()) == kOnStage) {
    return {};
  }
  return slice_of(kind, tensor.numel(), tensor.element_size(), rank(), size());
}

WorkPtr HostCommunicator::do_all_reduce(const OpContext& context, at::Tensor tensor, ReduceOp op) {
  auto operation = prepare(context, tensor);
  operation.reduce = op;
  operation.header.reduce = static_cast<std::uint8_t>(op);
  operation.outputs.push_back(std::move(tensor));
  return start(std::move(operation));
}

WorkPtr HostCommunicator::do_reduce_scatter(const OpContext& context, at::Tensor output,
                                            at::Tensor input, ReduceOp op) {
  auto operation = prepare(context, input);
  operation.reduce = op;
  operation.header.reduce = static_cast<std::uint8_t>(op);
  operation.outputs.push_back(std::move(output));
  return start(std::move(operation));
}

WorkPtr HostCommunicator::do_all_gather(const OpContext& context, std::vector<at::Tensor> outputs,
                                        at::Tensor input) {
  auto operation = prepare(context, input);
  operation.header.count = 0;
  std::vector<std::int64_t> counts;
  for (const auto& output : outputs) {
    counts.push_back(output.numel());
    operation.header.count += output.numel();
    operation.largest_part =
        std::max(operation.largest_part, static_cast<std::int64_t>(output.nbytes()));
  }
  operation.header.counts_hash = hash64(counts.data(), counts.size() * sizeof(std::int64_t));
  operation.outputs = std::move(outputs);
  return start(std::move(operation));
}

WorkPtr HostCommunicator::do_broadcast(const OpContext& context, at::Tensor tensor, int root) {
  auto operation = prepare(context, tensor);
  operation.header.root = root;
  operation.outputs.push_back(std::move(tensor));
  return start(std::move(operation));
}

WorkPtr HostCommunicator::do_barrier(const OpContext& context) {
  return start(prepare(context, {}));
}

at::Tensor HostCommunicator::do_allocate(const OpContext& context, std::int64_t numel,
                                         at::ScalarType dtype, bool shared) {
  auto operation = prepare(context, {});
  operation.header.dtype = static_cast<std::int8_t>(dtype);
  operation.header.count = numel;
  operation.header.shared = shared ? 1 : 0;
  const auto plan = arena_.plan(numel * static_cast<std::int64_t>(c10::elementSize(dtype)), shared);
  operation.arena_plan = plan;
  operation.header.available = std::numeric_limits<std::int64_t>::max();
  if (plan.is_new) {
    operation.header.available = available_memory();
    if (const auto limit = options().shared_memory_limit) {
      const auto used =
          static_cast<std::int64_t>(arena_.reserved_bytes() + group_->layout().total_bytes);
      operation.header.available = std::min(operation.header.available, *limit - used);
    }
  }
  const auto op = start_operation(std::move(operation));
  wait(*op);
  // The tensor keeps the memory mapped, also after the communicator has ended.
  return at::from_blob(
      arena_.data(plan), {numel}, [mapping = arena_.mapping(plan)](void*) {},
      at::TensorOptions().dtype(dtype));
}

}  // namespace

CommunicatorPtr make_host_communicator(const Job& job, CommunicatorOptions options,
                                       std::shared_ptr<MappingCache> cache) {
  CONVOY_REQUIRE(job.world_size() <= kMostRanks, kInvalidArgument, "communicator '", options.name,
                 "': ", job.world_size(), " ranks; the host backend takes at most ", kMostRanks);
  CONVOY_REQUIRE(job.world_size() == job.info().local_world_size, kInvalidArgument,
                 "communicator '", options.name, "': ", job.info().local_world_size, " of ",
                 job.world_size(),
                 " ranks are on this host; the host backend needs all of them on one machine");
  const Logger log({.level = read_environment().log_level, .rank = job.rank()});
  const auto deadline = Deadline::after(options.timeout);
  auto joined = job.rank() == 0 ? rendezvous_as_first(job, options, *cache, log, deadline)
                                : rendezvous_as_peer(job, options, *cache, deadline);
  return std::make_shared<HostCommunicator>(job, std::move(options), std::move(joined),
                                            std::move(cache), log);
}

}  // namespace convoy
