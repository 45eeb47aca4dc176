// Flat parameter buffers, their slices, and the exchange of slices.
#include "convoy/ddp/zero.h"

#include "convoy/base/exception_text.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace convoy::ddp {
namespace {

// The leaf's part of a mean gradient: a view, unless the user has put a strided one in its place.
at::Tensor part_of(const at::Tensor& gradient, const ParameterPiece& piece) {
  const at::NoGradGuard no_grad;
  return gradient.reshape({-1})
      .narrow(0, piece.begin, piece.numel)
      .view(piece.sizes)
      .variable_data();
}

}  // namespace

ZeroShards::ZeroShards(Replica& replica, std::int64_t group_bytes) : comm_(replica.communicator()) {
  for (const NamedTensor& parameter : replica.parameters()) {
    CONVOY_REQUIRE(!parameter.tensor.requires_grad() || parameter.tensor.is_contiguous(),
                   kInvalidArgument, "ZeroRedundancyOptimizer: parameter ", parameter.name,
                   " is not contiguous (strides ", parameter.tensor.strides(),
                   "); make it contiguous before wrapping the module");
    parts_.push_back({parameter.name, parameter.tensor, {}, {}});
  }
  plan_groups(group_bytes);
  for (Group& group : groups_) move_into(group);
}

void ZeroShards::plan_groups(std::int64_t group_bytes) {
  std::vector<ParameterShape> shapes;
  std::vector<std::size_t> places;
  std::int64_t bytes = 0;
  const auto close = [&] {
    if (places.empty()) return;
    groups_.push_back({plan_layout(shapes, comm_->size()), {}, std::move(places)});
    shapes.clear();
    places.clear();
    bytes = 0;
  };
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor& parameter = parts_[i].parameter;
    if (!parameter.requires_grad()) continue;
    const auto added = static_cast<std::int64_t>(parameter.nbytes());
    const bool other_type =
        !places.empty() && parts_[places.back()].parameter.scalar_type() != parameter.scalar_type();
    if (other_type || bytes + added > group_bytes) close();
    shapes.push_back({parts_[i].name, parameter.sizes().vec()});
    places.push_back(i);
    bytes += added;
  }
  close();
}

void ZeroShards::move_into(Group& group) {
  const at::NoGradGuard no_grad;
  const FlatLayout& layout = group.layout;
  const auto dtype = parts_[group.places.front()].parameter.scalar_type();
  group.full = comm_->allocate(layout.total_numel(), dtype, {.tag = "ZeRO: parameters"});
  const at::Tensor slice =
      group.full.narrow(0, comm_->rank() * layout.slice_numel, layout.slice_numel);
  for (std::size_t i = 0; i < group.places.size(); ++i) {
    Part& part = parts_[group.places[i]];
    const ParameterPlace& place = layout.places[i];
    const at::Tensor full =
        group.full.narrow(0, place.start, place.numel).view(part.parameter.sizes());
    full.copy_(part.parameter);
    part.parameter.set_data(full);
    part.piece = piece_of(layout, i, comm_->rank());
    part.leaf = slice.narrow(0, part.piece.slice_offset, part.piece.numel)
                    .view(part.piece.sizes)
                    .variable_data()
                    .set_requires_grad(true);
  }
}

void ZeroShards::share_gradients() const {
  for (const Part& part : parts_) {
    if (!part.leaf.defined()) continue;
    const at::Tensor& gradient = part.parameter.grad();
    part.leaf.mutable_grad() = gradient.defined() ? part_of(gradient, part.piece) : at::Tensor();
  }
}

std::vector<ShardSpan> ZeroShards::spans() const {
  share_gradients();
  std::vector<ShardSpan> spans;
  for (const Part& part : parts_) {
    if (!part.leaf.defined()) {
      spans.push_back(whole_span(part.name, part.parameter));
      continue;
    }
    spans.push_back({.name = part.name,
                     .sizes = part.parameter.sizes().vec(),
                     .begin = part.piece.begin,
                     .numel = part.piece.numel,
                     .leaf = part.leaf,
                     .replicated = false});
  }
  return spans;
}

std::vector<at::Tensor> ZeroShards::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const Part& part : parts_) {
    if (part.leaf.defined()) parameters.push_back(part.parameter);
  }
  return parameters;
}

void ZeroShards::step(torch::optim::Optimizer& optimizer) {
  share_gradients();
  try {
    optimizer.step();
  } catch (const std::exception& error) {
    fail(error);
    throw;
  }
  gather();
}

void ZeroShards::gather() {
  const at::NoGradGuard no_grad;
  std::vector<WorkPtr> works;
  for (const Group& group : groups_) {
    const auto numel = group.layout.slice_numel;
    works.push_back(comm_->all_gather(group.full,
                                      group.full.narrow(0, comm_->rank() * numel, numel),
                                      {.tag = "ZeRO: parameters"}));
  }
  for (const WorkPtr& work : works) work->wait();
  // A graph from before the step that still runs its backward must find out.
  for (const Part& part : parts_) {
    if (part.leaf.defined()) part.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void ZeroShards::zero_grad(bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (const Part& part : parts_) {
    if (!part.leaf.defined()) continue;
    part.leaf.mutable_grad().reset();
    at::Tensor& gradient = part.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.zero_();
    }
  }
}

void ZeroShards::fail(const std::exception& cause) noexcept {
  if (comm_->size() == 1) return;
  comm_->abort(Error(ErrorKind::kPeerLost,
                     concat("ZeroRedundancyOptimizer: the optimizer threw on rank ", comm_->rank(),
                            ": ", exception_text(cause)),
                     comm_->rank()));
}

}  // namespace convoy::ddp
