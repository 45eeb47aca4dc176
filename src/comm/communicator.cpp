// The checked public operations over the virtual do_* of a backend.
#include "convoy/comm/communicator.h"

#include "convoy/base/check.h"

namespace convoy {

std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  return "unknown";
}

std::string_view to_string(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kReduceScatter: return "reduce_scatter";
    case OpKind::kAllGather: return "all_gather";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kAllocate: return "allocate";
  }
  return "unknown";
}

Communicator::Communicator(int rank, int size, CommunicatorOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {}

#define CONVOY_CONTEXT(kind) \
  const std::lock_guard lock(mutex_); \
  OpContext context{OpKind::kind, ++sequence_, options.tag, Deadline::after(options.timeout.value_or(options_.timeout))}

WorkPtr Communicator::all_reduce(at::Tensor tensor, ReduceOp op, OpOptions options) {
  CONVOY_CONTEXT(kAllReduce);
  return do_all_reduce(context, std::move(tensor), op);
}
WorkPtr Communicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, OpOptions options) {
  CONVOY_CONTEXT(kReduceScatter);
  return do_reduce_scatter(context, std::move(output), std::move(input), op);
}
WorkPtr Communicator::all_gather(at::Tensor output, at::Tensor input, OpOptions options) {
  CONVOY_CONTEXT(kAllGather);
  std::vector<at::Tensor> outputs;
  const auto n = input.numel();
  for (int r = 0; r < size_; ++r) outputs.push_back(output.view({-1}).narrow(0, r * n, n));
  return do_all_gather(context, std::move(outputs), std::move(input));
}
WorkPtr Communicator::all_gather(std::vector<at::Tensor> outputs, at::Tensor input, OpOptions options) {
  CONVOY_CONTEXT(kAllGather);
  return do_all_gather(context, std::move(outputs), std::move(input));
}
WorkPtr Communicator::broadcast(at::Tensor tensor, int root, OpOptions options) {
  CONVOY_CONTEXT(kBroadcast);
  return do_broadcast(context, std::move(tensor), root);
}
WorkPtr Communicator::barrier(OpOptions options) {
  CONVOY_CONTEXT(kBarrier);
  return do_barrier(context);
}
at::Tensor Communicator::allocate(std::int64_t numel, at::ScalarType dtype, OpOptions options) {
  CONVOY_CONTEXT(kAllocate);
  return do_allocate(context, numel, dtype, false);
}
at::Tensor Communicator::allocate_shared(std::int64_t numel, at::ScalarType dtype, OpOptions options) {
  CONVOY_CONTEXT(kAllocate);
  return do_allocate(context, numel, dtype, true);
}

}  // namespace convoy
