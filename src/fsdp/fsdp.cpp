// The wrapper around a sharded model: options in, guards, spans and descriptions out.
#include "convoy/fsdp/fsdp.h"

#include "sharded_model.h"
#include "unit_table.h"

#include <exception>
#include <set>

namespace convoy::fsdp {
namespace {

/// Empty without mixed precision.
std::string precision_line(const std::vector<ParamGroup>& groups, std::int64_t cast_bytes) {
  for (const ParamGroup& group : groups) {
    if (!group.storage().is_mixed()) continue;
    return concat("  computes in ", c10::toString(group.storage().compute().scalar_type()), ": ",
                  in_mib(cast_bytes), " MiB a rank besides\n");
  }
  return {};
}

}  // namespace

NoSync::NoSync(std::shared_ptr<ShardedModel> model)
    : model_(std::move(model)), before_(model_->synchronises()) {
  model_->set_synchronises(false);
}

NoSync::~NoSync() {
  if (model_) model_->set_synchronises(before_);
}

EditScope::EditScope(std::shared_ptr<ShardedModel> model) : model_(std::move(model)) {
  model_->begin_edit();
}

FullySharded::FullySharded(std::shared_ptr<torch::nn::Module> module, CommunicatorPtr comm,
                           const Options& options)
    : module_(std::move(module)),
      model_(ShardedModel::create(*module_, std::move(comm), options)) {}

FullySharded::~FullySharded() {
  // A rank that ends by an exception is not one that has done its part.
  if (std::uncaught_exceptions() == 0) model_->close();
}

const CommunicatorPtr& FullySharded::communicator() const noexcept { return model_->comm_ptr(); }

NoSync FullySharded::no_sync() { return NoSync(model_); }

EditScope FullySharded::edit() { return EditScope(model_); }

void FullySharded::settle() { model_->settle(); }

void FullySharded::unshard(const std::string& units) { model_->unshard(units); }

void FullySharded::reshard(const std::string& units) { model_->reshard(units); }

void FullySharded::set_reshard_after_forward(bool reshards, const std::string& units) {
  model_->set_reshards(units, reshards);
}

std::vector<ShardSpan> FullySharded::shard_spans() const {
  std::vector<ShardSpan> spans;
  std::set<const c10::TensorImpl*> seen;
  for (const PlannedName& name : model_->names()) {
    if (name.ignored()) continue;
    const auto& leaf = model_->groups()[name.unit].param().leaves()[name.parameter];
    if (!seen.insert(leaf.tensor.unsafeGetTensorImpl()).second) continue;
    spans.push_back({.name = leaf.name,
                     .sizes = leaf.full_sizes,
                     .begin = leaf.piece.begin,
                     .numel = leaf.piece.numel,
                     .leaf = leaf.tensor,
                     .replicated = false});
  }
  return spans;
}

bool FullySharded::gathers_shared() const noexcept { return model_->options().shared; }

std::vector<UnitSummary> FullySharded::units() const {
  std::vector<UnitSummary> summaries;
  for (const ParamGroup& group : model_->groups()) {
    const FlatLayout& layout = group.param().layout();
    const auto& storage = group.storage();
    summaries.push_back({.name = group.name(),
                         .parameters = static_cast<std::int64_t>(group.param().leaves().size()),
                         .numel = layout.parameter_numel,
                         .padding_numel = layout.padding_numel(),
                         .shard_bytes = static_cast<std::int64_t>(storage.shard().nbytes()),
                         .full_bytes = static_cast<std::int64_t>(storage.compute().nbytes()),
                         .resident_bytes = storage.resident_bytes(),
                         .cut_at_rows = layout.cut == CutRule::kRows,
                         .trainable = group.trainable()});
  }
  return summaries;
}

std::string FullySharded::describe() const {
  const auto summaries = units();
  return unit_table(concat("FSDP: ", summaries.size(), " units over ", communicator()->size(),
                           " ranks, ", gathers_shared() ? "shared" : "private", " gather"),
                    summaries) +
         concat("  gradient buffers: ", in_mib(gradient_buffer_bytes()), " MiB a rank\n") +
         precision_line(model_->groups(), cast_parameter_bytes());
}

std::int64_t FullySharded::gradient_buffer_bytes() const noexcept {
  return model_->grad_buffer_bytes();
}

std::int64_t FullySharded::cast_parameter_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const ParamGroup& group : model_->groups()) bytes += group.storage().cast_bytes();
  return bytes;
}

std::int64_t FullySharded::local_gradient_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const ParamGroup& group : model_->groups()) bytes += group.gradients().local_bytes();
  return bytes;
}

}  // namespace convoy::fsdp
