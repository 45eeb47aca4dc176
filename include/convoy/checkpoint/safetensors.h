// safetensors files: named tensors and a few texts, in the format of the Python package.
#pragma once

#include "convoy/base/fd.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace convoy::saving {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;
/// The texts of a file's `__metadata__`.
using Metadata = std::map<std::string, std::string>;

/// A tensor as a file's header describes it. The data are row-major and little-endian.
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;
  std::int64_t begin = 0;  ///< First byte, counted from the end of the header.
  std::int64_t bytes = 0;
};

/// A safetensors file, open for reading. Made for files from anywhere: the whole header is checked
/// when it is opened, and nothing is allocated beyond what the file holds.
/// Dtypes: Double, Float, BFloat16, Half, Long, Int, Byte, Bool.
/// Thread rule: reading is safe from any number of threads.
class SafetensorsFile {
 public:
  /// Error: kInvalidArgument naming the file and what is wrong with it: it cannot be opened, or is
  /// no file but a folder, pipe or device; its
  /// header is cut short, no JSON, above 512 MiB, or has a name twice, a dtype that is unknown, a
  /// size that is wrong; its data overlap, have holes, or do not end where the file does.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  /// In the order of their data.
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  /// Null if there is no such tensor.
  const TensorInfo* find(const std::string& name) const;
  const Metadata& metadata() const noexcept { return metadata_; }

  /// Copies bytes [begin, begin + bytes) of one tensor's data to `out`. Errors: kSystem;
  /// kInvalidArgument for a Bool that is neither 0 nor 1, which must not become one.
  void read(const TensorInfo& tensor, std::int64_t begin, void* out, std::size_t bytes) const;
  /// A copy of one tensor. Errors as above.
  at::Tensor read(const TensorInfo& tensor) const;

 private:
  std::filesystem::path path_;
  Fd file_;
  std::int64_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  Metadata metadata_;
};

/// Writes `tensors` to a file that takes the place of `path` only when it is whole and on disk.
/// Dense tensors of any strides, on any device. A tensor that has several names is stored once; the
/// other names stand in the metadata with the stored one as their text, as in Python's save_model.
/// Python's package reads headers up to 100 MB only.
/// Errors: kInvalidArgument naming the tensor that cannot be stored, or both of two that share part
/// of their memory; kSystem with the path. What was at `path` is then still there.
void save_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                      const Metadata& metadata = {});

/// All tensors of a file, in the order of their data; then the other names of tied ones, which
/// share their memory. Errors as SafetensorsFile.
StateDict load_safetensors(const std::filesystem::path& path);

}  // namespace convoy::saving

namespace convoy {
using saving::load_safetensors;
using saving::save_safetensors;
}  // namespace convoy
