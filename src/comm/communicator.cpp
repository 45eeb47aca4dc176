// The checked public operations over the virtual do_* of a backend.
#include "convoy/comm/communicator.h"

#include "comm/tensor_checks.h"
#include "convoy/base/check.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace convoy {
namespace {

// Offsets for require_no_overlap.
constexpr std::int64_t kSamePlace = 0;
constexpr std::int64_t kNowhere = -1;

// The tensor a backend may write in place of `target`: itself, or a plain copy that goes back.
at::Tensor writable_plain(const at::Tensor& target, std::vector<WriteBack>& write_backs) {
  if (is_plain(target)) return target;
  at::Tensor copy = to_plain(target);
  write_backs.push_back({target, copy});
  return copy;
}

}  // namespace

Communicator::Communicator(int rank, int size, CommunicatorOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {}

OpContext Communicator::next_context(OpKind kind, OpOptions options,
                                     std::vector<WriteBack> write_backs, OwnValues own) {
  const auto timeout = options.timeout.value_or(options_.timeout);
  CONVOY_REQUIRE(timeout.count() > 0, kInvalidArgument,
                 describe(CallSite{kind, rank_, options.tag}), ": the timeout must be above 0");
  const auto deadline = Deadline::after(timeout);
  return OpContext{
      kind, ++sequence_, std::move(options.tag), deadline, std::move(write_backs), std::move(own)};
}

ElementRange Communicator::own_part(OpKind kind, const at::Tensor& tensor) {
  if (!is_plain(tensor)) return {};
  const std::lock_guard lock(mutex_);
  return do_own_part(kind, tensor);
}

void Communicator::require_own(OpKind kind, const std::string& tag, const at::Tensor& tensor,
                               const OwnValues& own) {
  if (own.empty()) return;
  const CallSite site{kind, rank_, tag};
  const ElementRange part = own_part(kind, tensor);
  std::int64_t next = part.begin;
  for (const OwnPiece& piece : own) {
    require_dense(site, piece.values, "own values");
    require_same_dtype(site, piece.values, tensor);
    const auto end = piece.begin + piece.values.numel();
    CONVOY_REQUIRE(is_plain(piece.values) && piece.begin >= next && end <= part.end,
                   kInvalidArgument, describe(site), ": own values for elements ", piece.begin,
                   " to ", end, "; they must be contiguous, in order, apart, and within ",
                   part.begin, " to ", part.end, " (own_part)");
    next = end;
  }
}

WorkPtr Communicator::all_reduce(at::Tensor tensor, ReduceOp op, OpOptions options, OwnValues own) {
  const CallSite site{OpKind::kAllReduce, rank_, options.tag};
  require_dense(site, tensor, "the tensor");
  require_writable(site, tensor, "the tensor");
  require_reducible(site, tensor.scalar_type(), op);
  require_own(OpKind::kAllReduce, options.tag, tensor, own);
  std::vector<WriteBack> write_backs;
  auto plain = writable_plain(tensor, write_backs);
  const std::lock_guard lock(mutex_);
  return do_all_reduce(
      next_context(OpKind::kAllReduce, std::move(options), std::move(write_backs), std::move(own)),
      std::move(plain), op);
}

WorkPtr Communicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                                     OpOptions options, OwnValues own) {
  const CallSite site{OpKind::kReduceScatter, rank_, options.tag};
  require_dense(site, input, "the input");
  require_dense(site, output, "the output");
  require_writable(site, output, "the output");
  require_same_dtype(site, output, input);
  require_reducible(site, input.scalar_type(), op);
  CONVOY_REQUIRE(input.numel() == output.numel() * size_, kInvalidArgument, describe(site),
                 ": the input has ", input.numel(), " elements and the output ", output.numel(),
                 "; with ", size_, " ranks the input must have ", size_, " times the output's");
  require_no_overlap(site, output, input, rank_ * static_cast<std::int64_t>(output.nbytes()));
  require_own(OpKind::kReduceScatter, options.tag, input, own);
  std::vector<WriteBack> write_backs;
  auto plain = writable_plain(output, write_backs);
  const std::lock_guard lock(mutex_);
  return do_reduce_scatter(next_context(OpKind::kReduceScatter, std::move(options),
                                        std::move(write_backs), std::move(own)),
                           std::move(plain), to_plain(input), op);
}

WorkPtr Communicator::all_gather(at::Tensor output, at::Tensor input, OpOptions options) {
  const CallSite site{OpKind::kAllGather, rank_, options.tag};
  require_dense(site, input, "the input");
  require_dense(site, output, "the output");
  require_writable(site, output, "the output");
  require_same_dtype(site, output, input);
  CONVOY_REQUIRE(output.numel() == input.numel() * size_, kInvalidArgument, describe(site),
                 ": the output has ", output.numel(), " elements and the input ", input.numel(),
                 "; with ", size_, " ranks the output must have ", size_, " times the input's");
  require_no_overlap(site, input, output, rank_ * static_cast<std::int64_t>(input.nbytes()));
  std::vector<WriteBack> write_backs;
  const auto flat = writable_plain(output, write_backs).detach().view({-1});
  std::vector<at::Tensor> parts;
  const auto numel = input.numel();
  for (int r = 0; r < size_; ++r) parts.push_back(flat.narrow(0, r * numel, numel));
  return gather_into(std::move(parts), std::move(input), std::move(options),
                     std::move(write_backs));
}

WorkPtr Communicator::all_gather(std::vector<at::Tensor> outputs, at::Tensor input,
                                 OpOptions options) {
  const CallSite site{OpKind::kAllGather, rank_, options.tag};
  require_dense(site, input, "the input");
  CONVOY_REQUIRE(std::cmp_equal(outputs.size(), size_), kInvalidArgument, describe(site), ": ",
                 outputs.size(), " outputs for ", size_, " ranks");
  std::vector<WriteBack> write_backs;
  for (int r = 0; r < size_; ++r) {
    auto& output = outputs[static_cast<std::size_t>(r)];
    require_dense(site, output, "an output");
    require_writable(site, output, "an output");
    require_same_dtype(site, output, input);
    CONVOY_REQUIRE(r != rank_ || output.numel() == input.numel(), kInvalidArgument, describe(site),
                   ": the input has ", input.numel(), " elements and this rank's output ",
                   output.numel());
    require_no_overlap(site, input, output, r == rank_ ? kSamePlace : kNowhere);
    output = writable_plain(output, write_backs);
  }
  return gather_into(std::move(outputs), std::move(input), std::move(options),
                     std::move(write_backs));
}

WorkPtr Communicator::gather_into(std::vector<at::Tensor> outputs, at::Tensor input,
                                  OpOptions options, std::vector<WriteBack> write_backs) {
  const std::lock_guard lock(mutex_);
  return do_all_gather(next_context(OpKind::kAllGather, std::move(options), std::move(write_backs)),
                       std::move(outputs), to_plain(input));
}

WorkPtr Communicator::broadcast(at::Tensor tensor, int root, OpOptions options) {
  const CallSite site{OpKind::kBroadcast, rank_, options.tag};
  require_dense(site, tensor, "the tensor");
  CONVOY_REQUIRE(root >= 0 && root < size_, kInvalidArgument, describe(site), ": root ", root,
                 " is not a rank; there are ", size_);
  std::vector<WriteBack> write_backs;
  at::Tensor plain;
  if (rank_ == root) {
    plain = to_plain(tensor);
  } else {
    require_writable(site, tensor, "the tensor");
    plain = writable_plain(tensor, write_backs);
  }
  const std::lock_guard lock(mutex_);
  return do_broadcast(next_context(OpKind::kBroadcast, std::move(options), std::move(write_backs)),
                      std::move(plain), root);
}

WorkPtr Communicator::barrier(OpOptions options) {
  const std::lock_guard lock(mutex_);
  return do_barrier(next_context(OpKind::kBarrier, std::move(options)));
}

at::Tensor Communicator::allocate(std::int64_t numel, at::ScalarType dtype, OpOptions options) {
  return allocate_checked(numel, dtype, std::move(options), false);
}

at::Tensor Communicator::allocate_shared(std::int64_t numel, at::ScalarType dtype,
                                         OpOptions options) {
  const CallSite site{OpKind::kAllocate, rank_, options.tag};
  CONVOY_REQUIRE(shares_memory(), kInvalidArgument, describe(site),
                 ": the ranks of this group do not share memory");
  return allocate_checked(numel, dtype, std::move(options), true);
}

at::Tensor Communicator::allocate_checked(std::int64_t numel, at::ScalarType dtype,
                                          OpOptions options, bool shared) {
  const CallSite site{OpKind::kAllocate, rank_, options.tag};
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;  // More than a machine has.
  CONVOY_REQUIRE(numel >= 0 && numel <= kMostBytes / 16, kInvalidArgument, describe(site), ": ",
                 numel, " elements");
  CONVOY_REQUIRE(!c10::isQIntType(dtype) && dtype != at::ScalarType::Undefined, kInvalidArgument,
                 describe(site), ": type ", c10::toString(dtype), " cannot be allocated");
  const std::lock_guard lock(mutex_);
  return do_allocate(next_context(OpKind::kAllocate, std::move(options)), numel, dtype, shared);
}

}  // namespace convoy
