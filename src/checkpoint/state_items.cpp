// Item after item, in the order of a file.
#include "checkpoint/state_items.h"

#include "convoy/base/check.h"

namespace convoy::saving {

StateItem item_like_span(const SpanExchange& exchange, std::size_t span, std::string name,
                         const at::Tensor& piece) {
  const ShardSpan& like = exchange.span(span);
  return {{std::move(name), like.leaf.scalar_type(), like.sizes}, span, piece};
}

void send_items(const std::vector<StateItem>& items, const SpanExchange& exchange, FirstRank& first,
                const std::function<StateSink*(std::vector<TensorInfo> tensors)>& open) {
  std::vector<TensorInfo> infos;
  for (const StateItem& item : items) infos.push_back(item.info);
  const auto order = file_order(infos);
  std::vector<TensorInfo> ordered;
  for (const std::size_t i : order) ordered.push_back(infos[i]);
  StateSink* sink = nullptr;
  first.run([&] { sink = open(std::move(ordered)); });
  for (const std::size_t i : order) {
    const StateItem& item = items[i];
    const auto take = [&](const void* data, std::size_t bytes) {
      first.run([&] { sink->write(item.info.name, data, bytes); });
    };
    if (item.span) {
      exchange.gather(*item.span, item.piece, take);
    } else {
      take(item.piece.const_data_ptr(), item.piece.nbytes());
    }
  }
}

void save_items(const std::vector<StateItem>& items, const SpanExchange& exchange,
                Communicator* comm, const std::filesystem::path& path, const Metadata& metadata) {
  FirstRank first(comm);
  std::optional<FileSink> file;
  send_items(items, exchange, first, [&](std::vector<TensorInfo> tensors) {
    return &file.emplace(path, std::move(tensors), metadata);
  });
  first.run([&] { file->finish(); });
  first.agree();
}

void receive_items(const std::vector<StateItem>& items, const SpanExchange& exchange,
                   FirstRank& first, const StateSource* source) {
  for (const StateItem& item : items) {
    exchange.scatter(*item.span, item.piece, [&](std::int64_t begin, void* out, std::size_t bytes) {
      first.run([&] { source->read(item.info.name, begin, out, bytes); });
    });
  }
}

void require_like(const StateSource& source, const TensorInfo& wanted) {
  const auto found = source.find(wanted.name);
  CONVOY_REQUIRE(found, kInvalidArgument, "'", wanted.name, "' is missing in ", source.describe());
  CONVOY_REQUIRE(found->sizes == wanted.sizes, kInvalidArgument, "'", wanted.name, "' has shape ",
                 c10::IntArrayRef(found->sizes), " in ", source.describe(), ", the model has ",
                 c10::IntArrayRef(wanted.sizes));
  CONVOY_REQUIRE(found->dtype == wanted.dtype, kInvalidArgument, "'", wanted.name, "' is ",
                 found->dtype, " in ", source.describe(), ", the model has ", wanted.dtype);
}

void require_all_known(const StateSource& source,
                       const std::function<bool(const std::string&)>& is_known, const char* where) {
  for (const std::string& name : source.names()) {
    CONVOY_REQUIRE(is_known(name), kInvalidArgument, "'", name, "' in ", source.describe(),
                   " is not in the ", where);
  }
}

}  // namespace convoy::saving
