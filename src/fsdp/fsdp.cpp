// The wrapper around a sharded model: options in, guards, spans and descriptions out.
#include "convoy/fsdp/fsdp.h"

#include "sharded_model.h"

#include <cstdio>
#include <exception>
#include <set>

namespace convoy::fsdp {
namespace {

std::string in_mib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

std::string table_row(const UnitSummary& unit) {
  char text[256];
  std::snprintf(
      text, sizeof(text), "  %-32s %6lld %13lld %10s %10s %8.2f%%  %s%s\n", unit.name.c_str(),
      static_cast<long long>(unit.parameters), static_cast<long long>(unit.numel),
      in_mib(unit.full_bytes).c_str(), in_mib(unit.shard_bytes).c_str(),
      unit.numel > 0
          ? 100.0 * static_cast<double>(unit.padding_numel) / static_cast<double>(unit.numel)
          : 0.0,
      unit.cut_at_rows ? "rows" : "elements", unit.trainable ? "" : ", frozen");
  return text;
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

std::vector<ShardSpan> FullySharded::shard_spans() const {
  std::vector<ShardSpan> spans;
  std::set<const c10::TensorImpl*> seen;
  for (const PlannedName& name : model_->names()) {
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
                         .full_bytes = static_cast<std::int64_t>(storage.full().nbytes()),
                         .resident_bytes = storage.resident_bytes(),
                         .cut_at_rows = layout.cut == CutRule::kRows,
                         .trainable = group.trainable()});
  }
  return summaries;
}

std::string FullySharded::describe() const {
  const auto summaries = units();
  UnitSummary total{.name = "total"};
  std::string rows;
  for (const UnitSummary& unit : summaries) {
    total.parameters += unit.parameters;
    total.numel += unit.numel;
    total.padding_numel += unit.padding_numel;
    total.shard_bytes += unit.shard_bytes;
    total.full_bytes += unit.full_bytes;
    total.cut_at_rows = total.cut_at_rows && unit.cut_at_rows;
    rows += table_row(unit);
  }
  char head[256];
  std::snprintf(head, sizeof(head),
                "FSDP: %zu units over %d ranks, %s gather\n  %-32s %6s %13s %10s %10s %9s  %s\n",
                summaries.size(), communicator()->size(), gathers_shared() ? "shared" : "private",
                "unit", "params", "elements", "full MiB", "rank MiB", "padding", "cut at");
  return head + rows + table_row(total) +
         concat("  gradient buffers: ", in_mib(gradient_buffer_bytes()), " MiB a rank\n");
}

std::int64_t FullySharded::gradient_buffer_bytes() const noexcept {
  return model_->grad_buffer_bytes();
}

std::int64_t FullySharded::local_gradient_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const ParamGroup& group : model_->groups()) bytes += group.gradients().local_bytes();
  return bytes;
}

}  // namespace convoy::fsdp
