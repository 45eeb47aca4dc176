// Files and state dicts behind one interface.
#include "checkpoint/state_streams.h"

#include "convoy/base/check.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

namespace convoy::saving {

std::int64_t StateSource::read_whole_number(const std::string& name) const {
  const auto info = find(name);
  CONVOY_CHECK(info.has_value(), "no '", name, "'");
  at::Tensor value = at::empty(info->sizes, info->dtype);
  CONVOY_REQUIRE(value.numel() == 1, kInvalidArgument, "'", name, "' has shape ", value.sizes(),
                 " in ", describe(), ", but it is one number");
  read(name, 0, value.mutable_data_ptr(), value.nbytes());
  const auto number = value.item<double>();
  CONVOY_REQUIRE(number >= 0 && number < 9e15 && std::floor(number) == number, kInvalidArgument,
                 "'", name, "' is ", number, " in ", describe(), ", which is no number of steps");
  return static_cast<std::int64_t>(number);
}

std::string FileSource::describe() const { return concat("'", file_.path().native(), "'"); }

std::vector<std::string> FileSource::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file_.tensors()) names.push_back(tensor.name);
  return names;
}

std::optional<TensorInfo> FileSource::find(const std::string& name) const {
  const TensorInfo* found = file_.find(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void FileSource::read(const std::string& name, std::int64_t begin, void* out,
                      std::size_t bytes) const {
  file_.read(*file_.find(name), begin, out, bytes);
}

std::optional<TensorInfo> DictSource::find(const std::string& name) const {
  const at::Tensor* value = state_.find(name);
  if (value == nullptr || !value->defined()) return {};
  CONVOY_REQUIRE(value->layout() == at::kStrided && value->is_cpu(), kInvalidArgument, "'", name,
                 "' is a ", value->toString(), "; only dense CPU tensors can be loaded");
  return TensorInfo{name, value->scalar_type(), value->sizes().vec()};
}

void DictSource::read(const std::string& name, std::int64_t begin, void* out,
                      std::size_t bytes) const {
  const at::Tensor value = state_[name].detach().contiguous();
  std::memcpy(out, static_cast<const char*>(value.const_data_ptr()) + begin, bytes);
}

DictSink::DictSink(const std::vector<TensorInfo>& tensors) {
  for (const TensorInfo& tensor : tensors) {
    state_.insert(tensor.name, at::empty(tensor.sizes, tensor.dtype));
  }
}

void DictSink::write(const std::string& name, const void* data, std::size_t bytes) {
  if (name != at_) done_ = 0;
  at_ = name;
  if (bytes == 0) return;
  std::memcpy(static_cast<char*>(state_[name].mutable_data_ptr()) + done_, data, bytes);
  done_ += bytes;
}

}  // namespace convoy::saving
