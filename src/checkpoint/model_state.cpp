// Parameters as items.
#include "convoy/checkpoint/model_state.h"

#include "checkpoint/state_items.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <unordered_set>

namespace convoy::saving {
namespace {

std::vector<StateItem> parameters_of(const SpanExchange& exchange) {
  std::vector<StateItem> items;
  for (std::size_t i = 0; i < exchange.size(); ++i) {
    const ShardSpan& span = exchange.span(i);
    items.push_back(item_like_span(exchange, i, span.name, span.leaf));
  }
  return items;
}

void require_model(const StateSource& source, const std::vector<StateItem>& items) {
  std::unordered_set<std::string> names;
  for (const StateItem& item : items) {
    require_like(source, item.info);
    names.insert(item.info.name);
  }
  require_all_known(
      source, [&](const std::string& name) { return names.contains(name); }, "model");
}

}  // namespace

void save_model(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                Communicator* comm, const Metadata& metadata) {
  const SpanExchange exchange(spans, comm, "save_model");
  save_items(parameters_of(exchange), exchange, comm, path, metadata);
}

void load_model(const std::filesystem::path& path, std::span<const ShardSpan> spans,
                Communicator* comm) {
  const SpanExchange exchange(spans, comm, "load_model");
  const auto items = parameters_of(exchange);
  FirstRank first(comm);
  std::optional<FileSource> file;
  first.run([&] { require_model(file.emplace(path), items); });
  first.agree();
  receive_items(items, exchange, first, file ? &*file : nullptr);
  first.agree();
}

}  // namespace convoy::saving
