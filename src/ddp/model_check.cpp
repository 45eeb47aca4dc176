// Compares the ranks' models before anything else is communicated.
#include "ddp/model_check.h"

#include "convoy/base/check.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace convoy::ddp {
namespace {

void append(std::string& out, std::string_view text) {
  const auto length = static_cast<std::uint64_t>(text.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out.append(text);
}

std::string take(std::string_view& in) {
  std::uint64_t length = 0;
  CONVOY_CHECK(in.size() >= sizeof(length), "model description is cut short");
  std::memcpy(&length, in.data(), sizeof(length));
  in.remove_prefix(sizeof(length));
  CONVOY_CHECK(in.size() >= length, "model description is cut short");
  std::string text(in.substr(0, length));
  in.remove_prefix(length);
  return text;
}

std::string pack(const std::vector<ModelEntry>& entries) {
  std::string out;
  for (const ModelEntry& entry : entries) {
    append(out, entry.kind);
    append(out, entry.name);
    append(out, entry.text);
  }
  return out;
}

std::vector<ModelEntry> unpack(std::string_view in) {
  std::vector<ModelEntry> entries;
  while (!in.empty()) {
    ModelEntry entry;
    entry.kind = take(in);
    entry.name = take(in);
    entry.text = take(in);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<ModelEntry> of_kind(const std::vector<ModelEntry>& entries, std::string_view kind) {
  std::vector<ModelEntry> out;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(out),
               [&](const ModelEntry& entry) { return entry.kind == kind; });
  return out;
}

std::string describe_entry(const std::vector<ModelEntry>& entries, std::size_t index, int rank) {
  const std::string what =
      index < entries.size() ? concat(entries[index].name, " ", entries[index].text) : "missing";
  return concat(what, " on rank ", rank, " (which has ", entries.size(), ")");
}

std::string describe_kind(std::string_view kind, const std::vector<ModelEntry>& first,
                          const std::vector<ModelEntry>& other, int rank) {
  const std::size_t longest = std::max(first.size(), other.size());
  for (std::size_t i = 0; i < longest; ++i) {
    const bool equal = i < first.size() && i < other.size() && first[i].name == other[i].name &&
                       first[i].text == other[i].text;
    if (equal) continue;
    return concat("DistributedDataParallel: the ranks do not wrap the same model: ", kind, " ", i,
                  " is ", describe_entry(first, i, 0), " and ", describe_entry(other, i, rank));
  }
  return {};
}

}  // namespace

std::string describe_difference(const std::vector<std::vector<ModelEntry>>& by_rank) {
  for (const std::string_view kind : {"option", "parameter", "buffer"}) {
    const auto first = of_kind(by_rank.front(), kind);
    for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
      const auto other = of_kind(by_rank[rank], kind);
      std::string text = describe_kind(kind, first, other, static_cast<int>(rank));
      if (!text.empty()) return text;
    }
  }
  return {};
}

void require_same_model(Communicator& comm, const std::vector<ModelEntry>& entries) {
  const std::string mine = pack(entries);
  const auto size = static_cast<std::int64_t>(comm.size());
  at::Tensor lengths = at::empty({size}, at::kLong);
  at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(mine.size());
  comm.all_gather(lengths, length, {.tag = "model check: lengths"})->wait();

  at::Tensor text = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
  std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  std::vector<at::Tensor> texts;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    texts.push_back(at::empty({lengths.const_data_ptr<std::int64_t>()[rank]}, at::kByte));
  }
  comm.all_gather(texts, text, {.tag = "model check"})->wait();

  std::vector<std::vector<ModelEntry>> by_rank;
  for (const at::Tensor& other : texts) {
    by_rank.push_back(unpack({static_cast<const char*>(other.const_data_ptr()), other.nbytes()}));
  }
  const std::string difference = describe_difference(by_rank);
  if (!difference.empty()) throw Error(ErrorKind::kMismatch, difference);
}

}  // namespace convoy::ddp
