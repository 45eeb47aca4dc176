// The header of a safetensors file: JSON text to checked facts and back. Pure: no files.
#pragma once

#include "convoy/checkpoint/safetensors.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::saving {

/// The longest header that is read or written: millions of tensors.
inline constexpr std::int64_t kMostHeaderBytes = std::int64_t{512} << 20;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< In the order of their data.
  Metadata metadata;
};

/// Reads and checks a header in front of `data_bytes` bytes of data. Error: kInvalidArgument, a
/// sentence without the file's name.
SafetensorsHeader parse_header(std::string_view json, std::int64_t data_bytes);

/// Gives each tensor its place, in the order given.
/// Errors: kInvalidArgument for a dtype that the format does not know.
void place_tensors(std::vector<TensorInfo>& tensors);

/// The JSON text of a header, filled up with blanks so that the data are aligned to 8 bytes.
/// Errors: kInvalidArgument for names that are not UTF-8 or come twice, and a header too long.
std::string format_header(const std::vector<TensorInfo>& tensors, const Metadata& metadata);

}  // namespace convoy::saving
