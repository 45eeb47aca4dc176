// Finds the state of each span, agrees on it, and streams it by name.
#include "convoy/checkpoint/optimizer_state.h"

#include "checkpoint/optimizer_fields.h"
#include "checkpoint/state_items.h"
#include "convoy/base/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <unordered_map>
#include <unordered_set>

namespace convoy::saving {
namespace {

using torch::optim::Optimizer;

// What a rank tells of one parameter: bits of the fields it has, and the step.
constexpr std::int64_t kBadState = std::int64_t{1} << 32;

constexpr std::int64_t bit_of(std::size_t field) { return std::int64_t{1} << field; }

std::string state_name(const std::string& parameter, std::string_view field) {
  return concat("state.", parameter, ".", field);
}

/// The spans that an optimizer steps, and the options of each.
struct SteppedSpans {
  std::vector<ShardSpan> spans;
  std::vector<const torch::optim::OptimizerOptions*> options;
};

SteppedSpans stepped_spans(std::span<const ShardSpan> spans, const Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, const torch::optim::OptimizerOptions*> stepped;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& param : group.params()) {
      stepped.emplace(param.unsafeGetTensorImpl(), &group.options());
    }
  }
  SteppedSpans found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const ShardSpan& span : spans) {
    const auto entry = stepped.find(span.leaf.unsafeGetTensorImpl());
    if (entry == stepped.end() || !seen.insert(entry->first).second) continue;
    found.spans.push_back(span);
    found.options.push_back(entry->second);
  }
  CONVOY_REQUIRE(seen.size() == stepped.size(), kInvalidArgument, "the optimizer steps ",
                 stepped.size() - seen.size(),
                 " tensors that are no parameters of the model, so their state has no name");
  return found;
}

/// The local state of one span, and what to tell the other ranks of it.
struct LocalState {
  OptimizerFields fields;
  std::int64_t mask = 0;
};

LocalState local_state(const ShardSpan& span, const Optimizer& optimizer, OptimizerFamily family) {
  LocalState local;
  const auto found = optimizer.state().find(span.leaf.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return local;
  local.fields = fields_of(family, *found->second);
  for (std::size_t field = 0; field < kFieldNames.size(); ++field) {
    const at::Tensor& tensor = local.fields.tensors[field];
    if (!tensor.defined()) continue;
    local.mask |= bit_of(field);
    if (tensor.sizes() != span.leaf.sizes() || tensor.scalar_type() != span.leaf.scalar_type()) {
      local.mask |= kBadState;
    }
  }
  if (local.mask == 0) local.fields.step = 0;
  return local;
}

/// Of one parameter, on all ranks.
struct AgreedState {
  std::int64_t mask = 0;
  std::int64_t step = 0;
};

/// Compares the ranks that hold parts of a parameter.
std::vector<AgreedState> agree_on(const std::vector<LocalState>& local,
                                  const SpanExchange& exchange) {
  const auto count = static_cast<std::int64_t>(local.size());
  at::Tensor mine = at::empty({count, 3}, at::kLong);
  auto* numbers = mine.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < local.size(); ++i) {
    *numbers++ = local[i].mask;
    *numbers++ = local[i].fields.step;
    *numbers++ = exchange.span(i).numel;
  }
  const at::Tensor all = exchange.collect(mine);
  std::vector<AgreedState> agreed(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    bool any = false;
    for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
      const auto* row =
          all.const_data_ptr<std::int64_t>() + (rank * count + static_cast<std::int64_t>(i)) * 3;
      if (row[2] == 0) continue;  // An empty piece may have a state or not.
      const std::string& name = exchange.span(i).name;
      CONVOY_REQUIRE((row[0] & kBadState) == 0, kInvalidArgument, exchange.operation(),
                     ": the state of '", name, "' on rank ", rank,
                     " has another shape or dtype than the parameter: it was made for other "
                     "parameters (before sharding, or by another model)");
      CONVOY_REQUIRE(!any || (agreed[i].mask == row[0] && agreed[i].step == row[1]), kMismatch,
                     exchange.operation(), ": the state of '", name, "' on rank ", rank,
                     " is at step ", row[1], " and on a rank before it at step ", agreed[i].step,
                     ", or has other tensors");
      agreed[i] = {row[0], row[1]};
      any = true;
    }
  }
  return agreed;
}

StateItem step_item(const std::string& parameter, std::int64_t step) {
  at::Tensor value = at::empty({}, at::kLong);
  *value.mutable_data_ptr<std::int64_t>() = step;
  return {{state_name(parameter, "step"), at::kLong, {}}, std::nullopt, value};
}

std::vector<StateItem> items_to_save(const SpanExchange& exchange, const Optimizer& optimizer,
                                     OptimizerFamily family) {
  std::vector<LocalState> local;
  for (std::size_t i = 0; i < exchange.size(); ++i) {
    local.push_back(local_state(exchange.span(i), optimizer, family));
  }
  const auto agreed = agree_on(local, exchange);
  std::vector<StateItem> items;
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    const ShardSpan& span = exchange.span(i);
    const auto mask = agreed[i].mask;
    if (mask == 0 || family != OptimizerFamily::kSgd) {
      items.push_back(step_item(span.name, mask == 0 ? 0 : agreed[i].step));
    }
    for (std::size_t field = 0; field < kFieldNames.size(); ++field) {
      if ((mask & bit_of(field)) == 0) continue;
      const at::Tensor& own = local[i].fields.tensors[field];
      items.push_back(item_like_span(exchange, i, state_name(span.name, kFieldNames[field]),
                                     own.defined() ? own : span.leaf));  // Empty where not its own.
    }
  }
  return items;
}

/// What a source holds of one parameter, checked. On rank 0.
AgreedState plan_parameter(const StateSource& source, const StateItem& like,
                           const torch::optim::OptimizerOptions& options, OptimizerFamily family,
                           std::unordered_set<std::string>& known) {
  const std::string& parameter = like.info.name;
  AgreedState plan;
  const std::string step_name = state_name(parameter, "step");
  const bool is_sgd = family == OptimizerFamily::kSgd;
  const bool has_step = source.find(step_name).has_value();
  known.insert(step_name);
  if (has_step) plan.step = source.read_whole_number(step_name);
  if (has_step && plan.step == 0) return plan;
  CONVOY_REQUIRE(has_step || is_sgd, kInvalidArgument, "'", step_name, "' is missing in ",
                 source.describe());
  for (std::size_t field = 0; field < kFieldNames.size(); ++field) {
    TensorInfo wanted = like.info;
    wanted.name = state_name(parameter, kFieldNames[field]);
    const bool takes = needs_field(family, options, field) ||
                       (has_field(family, field) && source.find(wanted.name));
    if (!takes) continue;
    require_like(source, wanted);
    known.insert(wanted.name);
    plan.mask |= bit_of(field);
  }
  return plan;
}

/// Reads on rank 0 what there is to load, and tells all ranks.
std::vector<AgreedState> plan_loading(const StateSource* source, const SpanExchange& exchange,
                                      const SteppedSpans& stepped, OptimizerFamily family,
                                      FirstRank& first) {
  const auto count = static_cast<std::int64_t>(exchange.size());
  at::Tensor numbers = at::empty({count, 2}, at::kLong);
  first.run([&] {
    auto* row = numbers.mutable_data_ptr<std::int64_t>();
    std::unordered_set<std::string> known;
    for (std::size_t i = 0; i < exchange.size(); ++i) {
      const auto like = item_like_span(exchange, i, exchange.span(i).name, {});
      const auto plan = plan_parameter(*source, like, *stepped.options[i], family, known);
      *row++ = plan.mask;
      *row++ = plan.step;
    }
    require_all_known(
        *source, [&](const std::string& name) { return known.contains(name); }, "optimizer");
  });
  first.agree();
  if (exchange.comm() != nullptr && count > 0) {
    exchange.comm()->broadcast(numbers, 0, {.tag = exchange.operation()})->wait();
  }
  std::vector<AgreedState> plan;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* row = numbers.const_data_ptr<std::int64_t>() + 2 * i;
    plan.push_back({row[0], row[1]});
  }
  return plan;
}

/// Takes the state of one span from the source. The old one goes first: both would not always fit.
void load_parameter(const SpanExchange& exchange, std::size_t index, const AgreedState& plan,
                    Optimizer& optimizer, OptimizerFamily family, FirstRank& first,
                    const StateSource* source) {
  const ShardSpan& span = exchange.span(index);
  auto* key = span.leaf.unsafeGetTensorImpl();
  optimizer.state().erase(key);
  OptimizerFields loaded;
  loaded.step = plan.step;
  std::vector<StateItem> items;
  for (std::size_t field = 0; field < kFieldNames.size(); ++field) {
    if ((plan.mask & bit_of(field)) == 0) continue;
    loaded.tensors[field] = at::zeros_like(span.leaf.detach());
    items.push_back(item_like_span(exchange, index, state_name(span.name, kFieldNames[field]),
                                   loaded.tensors[field]));
  }
  receive_items(items, exchange, first, source);
  if (plan.mask != 0 && span.numel > 0) optimizer.state()[key] = make_state(family, loaded);
}

/// `open` makes the source, on rank 0.
void load_from(const SteppedSpans& stepped, Optimizer& optimizer, Communicator* comm,
               const char* operation, const std::function<const StateSource*()>& open) {
  const auto family = family_of(optimizer);
  const SpanExchange exchange(stepped.spans, comm, operation);
  FirstRank first(comm);
  const StateSource* source = nullptr;
  first.run([&] { source = open(); });
  const auto plan = plan_loading(source, exchange, stepped, family, first);
  try {
    for (std::size_t i = 0; i < plan.size(); ++i) {
      load_parameter(exchange, i, plan[i], optimizer, family, first, source);
    }
    first.agree();
  } catch (...) {  // Parts of an old and a new state would be worse than none.
    for (const ShardSpan& span : stepped.spans) {
      optimizer.state().erase(span.leaf.unsafeGetTensorImpl());
    }
    throw;
  }
}

}  // namespace

StateDict full_optimizer_state_dict(std::span<const ShardSpan> spans, const Optimizer& optimizer,
                                    Communicator* comm) {
  const auto family = family_of(optimizer);
  const SteppedSpans stepped = stepped_spans(spans, optimizer);
  const SpanExchange exchange(stepped.spans, comm, "full_optimizer_state_dict");
  const auto items = items_to_save(exchange, optimizer, family);
  FirstRank first(comm);
  std::optional<DictSink> sink;
  send_items(items, exchange, first,
             [&](std::vector<TensorInfo> tensors) { return &sink.emplace(tensors); });
  first.agree();
  return sink ? sink->take() : StateDict();
}

void load_full_optimizer_state_dict(std::span<const ShardSpan> spans, Optimizer& optimizer,
                                    Communicator* comm, const StateDict& state) {
  const DictSource source(state);
  load_from(stepped_spans(spans, optimizer), optimizer, comm, "load_full_optimizer_state_dict",
            [&] { return &source; });
}

void save_optimizer(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                    const Optimizer& optimizer, Communicator* comm, const Metadata& metadata) {
  const auto family = family_of(optimizer);
  const SteppedSpans stepped = stepped_spans(spans, optimizer);
  const SpanExchange exchange(stepped.spans, comm, "save_optimizer");
  save_items(items_to_save(exchange, optimizer, family), exchange, comm, path, metadata);
}

void load_optimizer(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                    Optimizer& optimizer, Communicator* comm) {
  std::optional<FileSource> file;
  load_from(stepped_spans(spans, optimizer), optimizer, comm, "load_optimizer",
            [&] { return &file.emplace(path); });
}

}  // namespace convoy::saving
