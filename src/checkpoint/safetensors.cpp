// Whole state dicts to safetensors files and back: what is shared, stored once.
#include "checkpoint/durable_file.h"
#include "convoy/base/check.h"
#include "convoy/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

namespace convoy::saving {
namespace {

namespace fs = std::filesystem;

/// The memory that a tensor reaches over, from its first to its last element.
struct Reach {
  const at::Tensor* tensor;
  const std::string* name;
  std::uintptr_t begin, end;
};

Reach reach_of(const std::string& name, const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  std::uintptr_t elements = tensor.numel() > 0 ? 1 : 0;
  for (std::int64_t d = 0; elements > 0 && d < tensor.dim(); ++d) {
    elements += static_cast<std::uintptr_t>((tensor.size(d) - 1) * tensor.stride(d));
  }
  return {&tensor, &name, begin, begin + elements * tensor.element_size()};
}

bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// Names whose tensor is stored under another name, by that name.
Metadata find_aliases(const StateDict& tensors) {
  std::vector<Reach> reaches;
  for (const auto& item : tensors) {
    CONVOY_REQUIRE(item.value().defined() && item.value().layout() == at::kStrided &&
                       !item.value().is_meta() && !item.value().is_quantized(),
                   kInvalidArgument, "save_safetensors: '", item.key(), "' is a ",
                   item.value().toString(), "; only dense tensors can be stored");
    if (item.value().numel() > 0) reaches.push_back(reach_of(item.key(), item.value()));
  }
  std::stable_sort(reaches.begin(), reaches.end(),
                   [](const Reach& a, const Reach& b) { return a.begin < b.begin; });
  Metadata aliases;
  std::optional<Reach> furthest;
  for (const Reach& reach : reaches) {
    if (furthest && reach.begin < furthest->end &&
        reach.tensor->device() == furthest->tensor->device()) {
      CONVOY_REQUIRE(is_same_tensor(*reach.tensor, *furthest->tensor), kInvalidArgument,
                     "save_safetensors: '", *furthest->name, "' and '", *reach.name,
                     "' share part of their memory, which a file cannot keep; clone() one of them");
      aliases.emplace(*reach.name, *furthest->name);
    } else {
      furthest = reach;
    }
  }
  return aliases;
}

void write_tensors(const fs::path& path, const StateDict& tensors, Metadata metadata) {
  const Metadata aliases = find_aliases(tensors);
  std::vector<TensorInfo> infos;
  std::vector<at::Tensor> values;
  for (const auto& item : tensors) {
    if (aliases.contains(item.key())) continue;
    infos.push_back({item.key(), item.value().scalar_type(), item.value().sizes().vec()});
    values.push_back(item.value());
  }
  for (const auto& [name, stored] : aliases) {
    CONVOY_REQUIRE(metadata.emplace(name, stored).second, kInvalidArgument,
                   "save_safetensors: the metadata has an entry '", name,
                   "', which is the name of a tied tensor");
  }
  const auto order = file_order(infos);
  std::vector<TensorInfo> ordered;
  for (const std::size_t i : order) ordered.push_back(infos[i]);
  SafetensorsWriter writer(path, std::move(ordered), metadata);
  for (const std::size_t i : order) {
    const at::Tensor value = values[i].detach().cpu().resolve_conj().resolve_neg().contiguous();
    writer.write(value.const_data_ptr(), value.nbytes());
  }
  writer.finish();
}

}  // namespace

void save_safetensors(const fs::path& path, const StateDict& tensors, const Metadata& metadata) {
  const fs::path partial = folder_of(path) / concat(".", path.filename().native(), ".partial");
  std::error_code error;
  try {
    write_tensors(partial, tensors, metadata);
  } catch (...) {
    fs::remove(partial, error);
    throw;
  }
  fs::rename(partial, path, error);
  if (error) throw_system_error(concat("cannot write '", path.native(), "'"), error.value());
  sync_folder(folder_of(path));
}

StateDict load_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  StateDict tensors;
  for (const TensorInfo& info : file.tensors()) tensors.insert(info.name, file.read(info));
  for (const auto& [name, stored] : file.metadata()) {
    if (file.find(stored) == nullptr || file.find(name) != nullptr) continue;  // A text like any.
    tensors.insert(name, tensors[stored]);
  }
  return tensors;
}

}  // namespace convoy::saving
