// Writes a safetensors file tensor after tensor, without ever holding more than a piece of one.
#pragma once

#include "convoy/checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace convoy::saving {

class DurableFile;

/// The order in which a file holds its tensors: wide elements first, so that all are aligned, then
/// by name. Indices into `tensors`.
std::vector<std::size_t> file_order(const std::vector<TensorInfo>& tensors);

/// The header says where everything lies, so all names, dtypes and sizes come first and the data
/// after them, in file order. Thread rule: one thread at a time.
class SafetensorsWriter {
 public:
  /// `tensors` in file_order; their begin and bytes are computed here. The file is made anew.
  /// Errors: kInvalidArgument (a name twice or not UTF-8, an unknown dtype); kSystem.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const Metadata& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends data, cut anywhere. Error: kSystem naming the path.
  void write(const void* data, std::size_t bytes);
  /// Ends the file and waits until it is on disk. Errors: kSystem; kMisuse if data are missing.
  void finish();

 private:
  std::unique_ptr<DurableFile> file_;
  std::int64_t left_ = 0;
};

}  // namespace convoy::saving
