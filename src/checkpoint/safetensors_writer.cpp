// The header first, then the data.
#include "convoy/checkpoint/safetensors_writer.h"

#include "checkpoint/durable_file.h"
#include "checkpoint/safetensors_header.h"
#include "convoy/base/check.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace convoy::saving {

std::vector<std::size_t> file_order(const std::vector<TensorInfo>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto width_a = c10::elementSize(tensors[a].dtype);
    const auto width_b = c10::elementSize(tensors[b].dtype);
    return width_a != width_b ? width_a > width_b : tensors[a].name < tensors[b].name;
  });
  return order;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors, const Metadata& metadata) {
  place_tensors(tensors);
  const std::string header = format_header(tensors, metadata);
  for (const TensorInfo& tensor : tensors) left_ += tensor.bytes;
  file_ = std::make_unique<DurableFile>(path);
  const std::uint64_t header_bytes = header.size();
  file_->write(&header_bytes, sizeof header_bytes);
  file_->write(header.data(), header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  CONVOY_REQUIRE(static_cast<std::int64_t>(bytes) <= left_, kMisuse,
                 "a safetensors file was given more data than its header announced");
  file_->write(data, bytes);
  left_ -= static_cast<std::int64_t>(bytes);
}

void SafetensorsWriter::finish() {
  CONVOY_REQUIRE(left_ == 0, kMisuse, "a safetensors file lacks ", left_,
                 " bytes of the data that its header announced");
  file_->finish();
}

}  // namespace convoy::saving
