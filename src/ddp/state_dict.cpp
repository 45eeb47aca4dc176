// Parameters out of a replicated model and back into it, under their original names.
#include "convoy/ddp/state_dict.h"

#include "convoy/base/check.h"
#include "ddp/broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <cstring>

namespace convoy::ddp {
namespace {

/// Every name of the model, tied ones too, with its tensor: parameters, then buffers.
StateDict named_tensors(const torch::nn::Module& module) {
  StateDict out;
  for (const auto& item : module.named_parameters()) out.insert(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) out.insert(item.key(), item.value());
  }
  return out;
}

bool is_floating(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

/// What is wrong with `state` for a model of `wanted`, or nothing.
std::string describe_problem(const StateDict& wanted, const StateDict& state) {
  for (const auto& item : wanted) {
    const at::Tensor* given = state.find(item.key());
    if (given == nullptr || !given->defined()) return concat(item.key(), " is missing");
    if (given->layout() != at::kStrided || given->is_meta()) {
      return concat(item.key(), " is a ", given->toString(), "; only dense tensors can be loaded");
    }
    if (given->sizes() != item.value().sizes()) {
      return concat(item.key(), " is ", given->sizes(), " and the model's is ",
                    item.value().sizes());
    }
    const bool converts = is_floating(*given) && is_floating(item.value());
    if (given->scalar_type() != item.value().scalar_type() && !converts) {
      return concat(item.key(), " is ", given->scalar_type(), " and the model's is ",
                    item.value().scalar_type());
    }
  }
  for (const auto& item : state) {
    if (!wanted.contains(item.key())) return concat(item.key(), " is not in the model");
  }
  return {};
}

/// Gives all ranks rank 0's text.
std::string share_text(Communicator& comm, const std::string& text) {
  at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  comm.broadcast(length, 0, {.tag = "load_full_state_dict: length of text"})->wait();
  at::Tensor bytes = at::empty({*length.const_data_ptr<std::int64_t>()}, at::kByte);
  if (bytes.numel() == 0) return {};
  if (comm.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  comm.broadcast(bytes, 0, {.tag = "load_full_state_dict: text"})->wait();
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

}  // namespace

void for_each_full_parameter(
    const Replica& replica,
    const std::function<void(const std::string& name, const at::Tensor& full)>& visit) {
  if (replica.communicator()->rank() != 0) return;
  for (const auto& item : replica.module().named_parameters()) {
    visit(item.key(), item.value().detach().contiguous());
  }
}

StateDict full_state_dict(const Replica& replica) {
  StateDict state;
  if (replica.communicator()->rank() != 0) return state;
  for (const auto& item : named_tensors(replica.module())) {
    state.insert(item.key(), item.value().detach().clone(at::MemoryFormat::Contiguous));
  }
  return state;
}

void load_full_state_dict(Replica& replica, const StateDict& state) {
  Communicator& comm = *replica.communicator();
  const StateDict wanted = named_tensors(replica.module());
  const std::string problem =
      share_text(comm, comm.rank() == 0 ? describe_problem(wanted, state) : std::string());
  CONVOY_REQUIRE(problem.empty(), kInvalidArgument, "load_full_state_dict: ", problem);
  if (comm.rank() == 0) {
    const at::NoGradGuard no_grad;
    for (const auto& item : wanted) item.value().detach().copy_(state[item.key()]);
  }
  broadcast_from_rank_0(comm, wanted.values(), "load_full_state_dict", VersionCounters::kBump);
}

}  // namespace convoy::ddp
