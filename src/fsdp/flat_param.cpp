// Switches leaves between their two states and checks that nobody else has moved them.
#include "flat_param.h"

#include "convoy/base/check.h"

#include <ATen/ATen.h>

namespace convoy::fsdp {

FlatLayout layout_of(const PlannedUnit& unit, int world) {
  std::vector<ParameterShape> shapes;
  for (const PlannedParameter& parameter : unit.parameters) {
    shapes.push_back({parameter.name, parameter.tensor.sizes().vec()});
  }
  return plan_layout(shapes, world);
}

namespace {

bool same_place(const at::Tensor& leaf, const at::Tensor& view) {
  return leaf.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             view.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         leaf.storage_offset() == view.storage_offset() && leaf.sizes() == view.sizes() &&
         leaf.scalar_type() == view.scalar_type();
}

}  // namespace

FlatParam::FlatParam(const PlannedUnit& unit, int rank, int world)
    : layout_(layout_of(unit, world)) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const PlannedParameter& parameter = unit.parameters[i];
    leaves_.push_back({.name = parameter.name,
                       .tensor = parameter.tensor,
                       .full_sizes = parameter.tensor.sizes().vec(),
                       .piece = piece_of(layout_, i, rank),
                       .compute_view = {},
                       .master_view = {},
                       .shard_view = {},
                       .accumulator = {}});
  }
}

void FlatParam::attach(const at::Tensor& master, const at::Tensor& compute, const at::Tensor& shard,
                       const std::vector<bool>& kept) {
  CONVOY_CHECK(master.numel() == layout_.total_numel() && compute.numel() == master.numel() &&
               shard.numel() == layout_.slice_numel && kept.size() == leaves_.size());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    Leaf& leaf = leaves_[i];
    const ParameterPlace& place = layout_.places[i];
    const auto place_in = [&](const at::Tensor& full) {
      return full.narrow(0, place.start, place.numel).view(leaf.full_sizes);
    };
    leaf.master_view = place_in(master);
    leaf.compute_view = kept[i] ? leaf.master_view : place_in(compute);
    leaf.shard_view =
        shard.narrow(0, leaf.piece.slice_offset, leaf.piece.numel).view(leaf.piece.sizes);
  }
}

const at::Tensor& FlatParam::view_of(const Leaf& leaf, Shows what) {
  switch (what) {
    case Shows::kShard: return leaf.shard_view;
    case Shows::kCompute: return leaf.compute_view;
    case Shows::kMaster: return leaf.master_view;
  }
  return leaf.shard_view;
}

void FlatParam::show(Shows what) {
  for (Leaf& leaf : leaves_) {
    leaf.tensor.set_data(view_of(leaf, what));
    if (leaf.accumulator) put_back_accumulator(leaf.tensor, leaf.accumulator);
  }
  shows_ = what;
}

void FlatParam::show_copy(const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    Leaf& leaf = leaves_[i];
    const ParameterPlace& place = layout_.places[i];
    leaf.tensor.set_data(flat.narrow(0, place.start, place.numel).view(leaf.full_sizes));
    if (leaf.accumulator) put_back_accumulator(leaf.tensor, leaf.accumulator);
  }
}

void FlatParam::require_untouched() const {
  for (const Leaf& leaf : leaves_) {
    const at::Tensor& view = view_of(leaf, shows_);
    CONVOY_REQUIRE(
        same_place(leaf.tensor, view), kMisuse, "FSDP: parameter '", leaf.name,
        "' no longer lies in its ", shows_ == Shows::kShard ? "shard" : "unit's full buffer",
        " (shape ", leaf.tensor.sizes(), " ", leaf.tensor.scalar_type(), ", expected ",
        view.sizes(), " ", view.scalar_type(),
        "): to(), torch::load and set_data must not be used on a sharded parameter; copy "
        "into it in place under fsdp.edit(), or use load_full_state_dict");
  }
}

void FlatParam::take_accumulators(const std::function<void(std::size_t, Node&)>& hook) {
  CONVOY_CHECK(shows_ == Shows::kCompute, "accumulators are taken in the state of forward");
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    Leaf& leaf = leaves_[i];
    if (leaf.accumulator || !leaf.tensor.requires_grad()) continue;
    leaf.accumulator = take_accumulator(leaf.tensor);
    hook(i, *leaf.accumulator);
  }
}

void FlatParam::append_spans(std::vector<ShardSpan>& spans) const {
  for (const Leaf& leaf : leaves_) {
    spans.push_back({.name = leaf.name,
                     .sizes = leaf.full_sizes,
                     .begin = leaf.piece.begin,
                     .numel = leaf.piece.numel,
                     .leaf = leaf.tensor,
                     .replicated = false});
  }
}

}  // namespace convoy::fsdp
