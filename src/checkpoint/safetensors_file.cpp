// Opens safetensors files and reads tensors out of them.
#include "base/regular_file.h"
#include "checkpoint/safetensors_header.h"
#include "convoy/base/check.h"
#include "convoy/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy::saving {
namespace {

static_assert(std::endian::native == std::endian::little, "the data would have to be turned");

constexpr std::int64_t kLengthBytes = 8;

void read_at(int fd, const std::filesystem::path& path, std::int64_t offset, void* out,
             std::size_t bytes) {
  auto* place = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = ::pread(fd, place, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error(concat("cannot read '", path.native(), "'"), errno);
    CONVOY_REQUIRE(count > 0, kSystem, "cannot read '", path.native(),
                   "': it has become shorter while it was in use");
    place += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument,
              concat("cannot use the safetensors file '", path.native(), "': ", reason));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  RegularFile file = open_regular_file(path, O_RDONLY);
  if (!file.problem.empty()) refuse_file(path_, file.problem);
  file_ = std::move(file.fd);
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) {
    refuse_file(path_, std::generic_category().message(errno));
  }
  const std::int64_t file_bytes = info.st_size;
  if (file_bytes < kLengthBytes + 2) {
    refuse_file(path_, concat("it has ", file_bytes, " bytes, too few for any header"));
  }
  std::uint64_t header_bytes = 0;
  read_at(file_.get(), path_, 0, &header_bytes, sizeof header_bytes);
  if (header_bytes > static_cast<std::uint64_t>(file_bytes - kLengthBytes)) {
    refuse_file(path_, concat("its first 8 bytes announce a header of ", header_bytes,
                              " bytes, but only ", file_bytes - kLengthBytes,
                              " follow: it is cut short, or no safetensors file"));
  }
  if (header_bytes > static_cast<std::uint64_t>(kMostHeaderBytes)) {
    refuse_file(path_, concat("its header of ", header_bytes, " bytes is above the limit of ",
                              kMostHeaderBytes));
  }
  std::string json(static_cast<std::size_t>(header_bytes), '\0');
  read_at(file_.get(), path_, kLengthBytes, json.data(), json.size());
  data_begin_ = kLengthBytes + static_cast<std::int64_t>(header_bytes);
  try {
    SafetensorsHeader header = parse_header(json, file_bytes - data_begin_);
    tensors_ = std::move(header.tensors);
    metadata_ = std::move(header.metadata);
  } catch (const Error& error) {
    refuse_file(path_, error.what());
  }
  index_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t begin, void* out,
                           std::size_t bytes) const {
  CONVOY_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(bytes) <= tensor.bytes);
  read_at(file_.get(), path_, data_begin_ + tensor.begin + begin, out, bytes);
  auto* values = static_cast<std::uint8_t*>(out);
  if (tensor.dtype == at::kBool &&
      std::any_of(values, values + bytes, [](std::uint8_t value) { return value > 1; })) {
    std::fill(values, values + bytes, std::uint8_t{0});  // Nobody must read them as bools.
    refuse_file(path_, concat("'", tensor.name, "' is BOOL and has bytes other than 0 and 1"));
  }
}

at::Tensor SafetensorsFile::read(const TensorInfo& tensor) const {
  at::Tensor value = at::empty(tensor.sizes, tensor.dtype);
  read(tensor, 0, value.mutable_data_ptr(), value.nbytes());
  return value;
}

}  // namespace convoy::saving
