// Copies, accumulates and reduces the gradients of one unit.
#include "unit_gradients.h"

#include "convoy/base/check.h"

#include <ATen/ATen.h>

#include <utility>

namespace convoy::fsdp {
namespace {

at::Tensor dense(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
}

// The piece of a slice that belongs to a leaf: same memory, but no view in the eyes of autograd,
// which would refuse the detach_() of Optimizer::zero_grad.
at::Tensor piece_in(const at::Tensor& slice, const ParameterPiece& piece) {
  return slice.narrow(0, piece.slice_offset, piece.numel).view(piece.sizes).variable_data();
}

// A gradient that no leaf of this shape can be stepped with: its last size is one too many, which
// cannot be broadcast into the leaf. Holds ones, so that zeroing it in place can be seen.
at::Tensor make_placeholder(const FlatParam::Leaf& leaf) {
  const auto& sizes = leaf.piece.sizes;
  const std::int64_t last = sizes.empty() ? 1 : sizes.back();
  return at::ones({last + 1}, leaf.tensor.scalar_type());
}

}  // namespace

UnitGradients::UnitGradients(const FlatParam& param, at::ScalarType dtype,
                             std::shared_ptr<GradBufferPool> pool, std::string name)
    : param_(param),
      dtype_(dtype),
      pool_(std::move(pool)),
      name_(std::move(name)),
      in_buffer_(param.leaves().size()),
      stayed_(param.leaves().size()),
      used_(param.leaves().size()),
      placeholders_(param.leaves().size()),
      stashed_(param.leaves().size()) {}

at::Tensor UnitGradients::place(const at::Tensor& buffer, std::size_t index) const {
  const ParameterPlace& at = param_.layout().places[index];
  return buffer.narrow(0, at.start, at.numel).view(param_.leaves()[index].full_sizes);
}

void UnitGradients::begin() {
  for (std::size_t i = 0; i < placeholders_.size(); ++i) {
    if (!placeholders_[i].defined()) continue;
    at::Tensor& gradient = param_.leaves()[i].tensor.mutable_grad();
    // Module::zero_grad puts another tensor over the same memory in its place.
    const bool is_placeholder = gradient.defined() && gradient.is_alias_of(placeholders_[i]);
    if (is_placeholder && gradient.count_nonzero().item<std::int64_t>() > 0) {
      gradient = std::move(stashed_[i]);
    } else {
      // Dropped by zero_grad in some form, or replaced by a gradient of the user's own.
      local_.has[i] = false;
      if (is_placeholder) gradient.reset();
    }
    placeholders_[i].reset();
    stashed_[i].reset();
  }
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] = !local_.empty_at(i);
}

bool UnitGradients::take_buffer(bool plain) {
  const std::int64_t numel = param_.layout().total_numel();
  buffer_ = plain ? pool_->take_plain(numel) : pool_->try_take(numel);
  in_buffer_.assign(in_buffer_.size(), false);
  stayed_.assign(stayed_.size(), {});
  return has_buffer();
}

void UnitGradients::take(std::size_t index, const at::Tensor& gradient) {
  const ParameterPlace& at = param_.layout().places[index];
  const at::Tensor& buffer = buffer_.tensor();
  // Somebody else who holds it may change it in place before it is read, as a hook may; the copied
  // part would not follow.
  // A part of something larger, as the gradient of what was concatenated, would hold all of that.
  const bool as_here = is_sole_holder(gradient) && gradient.layout() == at::kStrided &&
                       gradient.storage().nbytes() == gradient.nbytes() &&
                       gradient.is_contiguous() && gradient.scalar_type() == buffer.scalar_type() &&
                       !gradient.is_neg();
  if (as_here) {
    stayed_[index] = copy_but_own(buffer, at.start, gradient.detach().view({-1}), buffer_.own());
  } else {
    place(buffer, index).copy_(dense(gradient));
  }
}

void UnitGradients::bring(std::size_t index) {
  OwnPiece& piece = stayed_[index];
  if (!piece.values.defined()) return;
  buffer_.tensor().narrow(0, piece.begin, piece.values.numel()).copy_(piece.values);
  piece = {};
}

void UnitGradients::add(std::size_t index, const at::Tensor& gradient) {
  at::Tensor target = place(buffer_.tensor(), index);
  if (in_buffer_[index]) {
    bring(index);
    target.add_(dense(gradient));
  } else if (!local_.empty_at(index)) {
    at::add_out(target, place(local_.buffer, index), dense(gradient));
  } else {
    take(index, gradient);
  }
  in_buffer_[index] = true;
  used_[index] = true;
}

void UnitGradients::add_to(Filled& filled, std::size_t index, const at::Tensor& gradient) {
  if (!filled.buffer.defined()) {
    filled.buffer = at::empty({param_.layout().total_numel()}, pool_->dtype());
    filled.has.assign(used_.size(), false);
  }
  at::Tensor target = place(filled.buffer, index);
  if (filled.has[index]) {
    target.add_(dense(gradient));
  } else {
    target.copy_(dense(gradient));
  }
  filled.has[index] = true;
}

void UnitGradients::add_local(std::size_t index, const at::Tensor& gradient) {
  add_to(local_, index, gradient);
}

void UnitGradients::add_late(std::size_t index, const at::Tensor& gradient) {
  add_to(late_, index, gradient);
}

at::Tensor UnitGradients::output_buffer() {
  const auto& leaves = param_.leaves();
  bool accumulates = false;
  for (const auto& leaf : leaves) accumulates = accumulates || leaf.tensor.grad().defined();
  const std::int64_t numel = param_.layout().slice_numel;
  if (accumulates) return at::empty({numel}, dtype_);

  bool reusable = kept_.defined() && kept_.storage().use_count() == kept_views_.size() + 1;
  for (const at::Tensor& view : kept_views_) reusable = reusable && view.use_count() == 1;
  if (!reusable) {
    kept_ = at::empty({numel}, dtype_);
    kept_views_.clear();
    for (const auto& leaf : leaves) {
      kept_views_.push_back(piece_in(kept_, leaf.piece));
    }
  }
  return kept_;
}

void UnitGradients::zero_missing(const at::Tensor& buffer, const std::vector<bool>& has) const {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const bool missing = has.empty() || !has[i];
    if (missing && param_.leaves()[i].tensor.requires_grad()) place(buffer, i).zero_();
  }
}

ReduceInFlight UnitGradients::begin_reduce(Communicator& comm, std::string tag) {
  CONVOY_CHECK(has_buffer(), "unit ", name_, " has no gradient buffer");
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (in_buffer_[i] || local_.empty_at(i)) continue;
    place(buffer_.tensor(), i).copy_(place(local_.buffer, i));
    in_buffer_[i] = true;
  }
  zero_missing(buffer_.tensor(), in_buffer_);
  local_.clear();
  ReduceInFlight flight;
  const bool casts = pool_->dtype() != dtype_;
  flight.output =
      casts ? at::empty({param_.layout().slice_numel}, pool_->dtype()) : output_buffer();
  flight.input = std::move(buffer_);
  OwnValues own;
  for (OwnPiece& piece : stayed_) {
    if (!piece.values.defined()) continue;
    reducing_bytes_ += static_cast<std::int64_t>(piece.values.storage().nbytes());
    own.push_back(std::exchange(piece, {}));
  }
  // Places ascend with the leaves, so the pieces do.
  flight.work = comm.reduce_scatter(flight.output, flight.input.tensor(), ReduceOp::kAvg,
                                    {.tag = std::move(tag)}, std::move(own));
  return flight;
}

ReduceInFlight UnitGradients::begin_late_reduce(Communicator& comm) {
  ReduceInFlight flight;
  flight.adds = true;
  flight.input = pool_->take_plain(param_.layout().total_numel());
  if (late_.buffer.defined()) {
    zero_missing(late_.buffer, late_.has);
    flight.input.tensor().copy_(late_.buffer);
  } else {
    zero_missing(flight.input.tensor(), {});
  }
  late_.clear();
  flight.output = at::empty({param_.layout().slice_numel}, flight.input.tensor().scalar_type());
  flight.work = comm.reduce_scatter(flight.output, flight.input.tensor(), ReduceOp::kAvg,
                                    {.tag = name_ + " (second round)"});
  return flight;
}

void UnitGradients::finish_reduce(ReduceInFlight flight) {
  flight.work->wait();
  reducing_bytes_ = 0;
  if (flight.adds) {
    reduced_.add_(flight.output);
  } else if (flight.output.scalar_type() != dtype_) {
    reduced_ = output_buffer();
    reduced_.copy_(flight.output);
  } else {
    reduced_ = std::move(flight.output);
  }
}

void UnitGradients::put_on_leaves(const std::vector<bool>& used) {
  const auto& leaves = param_.leaves();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!used[i]) continue;
    const at::Tensor value =
        reduced_.is_same(kept_) ? kept_views_[i] : piece_in(reduced_, leaves[i].piece);
    at::Tensor& gradient = leaves[i].tensor.mutable_grad();
    if (!gradient.defined()) {
      gradient = value;
      continue;
    }
    CONVOY_REQUIRE(gradient.sizes() == value.sizes(), kMisuse, "FSDP: the gradient on '",
                   leaves[i].name, "' has shape ", gradient.sizes(), ", its shard ", value.sizes(),
                   "; a gradient set by hand must have the shard's shape");
    gradient.add_(value);
  }
  reduced_.reset();
}

void UnitGradients::set_placeholders() {
  const auto& leaves = param_.leaves();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (local_.empty_at(i)) continue;
    at::Tensor& gradient = leaves[i].tensor.mutable_grad();
    placeholders_[i] = make_placeholder(leaves[i]);
    stashed_[i] = std::exchange(gradient, placeholders_[i]);
  }
}

void UnitGradients::abandon() noexcept {
  buffer_ = {};
  reducing_bytes_ = 0;
  stayed_.assign(stayed_.size(), {});
  local_.clear();
  late_.clear();
  reduced_.reset();
}

std::int64_t UnitGradients::local_bytes() const noexcept {
  std::int64_t bytes = reducing_bytes_;
  for (const OwnPiece& piece : stayed_) {
    if (piece.values.defined()) bytes += static_cast<std::int64_t>(piece.values.storage().nbytes());
  }
  if (local_.buffer.defined()) bytes += static_cast<std::int64_t>(local_.buffer.nbytes());
  if (late_.buffer.defined()) bytes += static_cast<std::int64_t>(late_.buffer.nbytes());
  return bytes;
}

}  // namespace convoy::fsdp
