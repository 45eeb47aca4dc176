// Reads the header event by event, so that nothing is stored that was not checked.
#include "checkpoint/safetensors_header.h"

#include "convoy/base/check.h"

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

namespace convoy::saving {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 8> kDtypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"BF16", at::kBFloat16},
    {"F16", at::kHalf},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

std::optional<std::string_view> name_of(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return name;
  }
  return {};
}

/// Bytes of all elements, or nothing where that is no number of bytes. Also of a tensor without
/// elements the other sizes must have a product: it becomes the strides.
std::optional<std::int64_t> byte_count(const TensorInfo& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  bool empty = false;
  for (const std::int64_t size : tensor.sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      return {};
    }
    empty = empty || size == 0;
  }
  return empty ? 0 : bytes;
}

/// Receives the parser's events. What is wrong is kept in problem().
class HeaderEvents final : public nlohmann::json_sax<Json> {
 public:
  const std::string& problem() const noexcept { return problem_; }
  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kNames:
        if (!names_.insert(name).second) return fail(concat("the name '", name, "' comes twice"));
        name_ = name;
        place_ = name == kMetadataKey ? Place::kMetadataBegin : Place::kTensorBegin;
        return true;
      case Place::kMetadata:
        if (header_.metadata.contains(name)) {
          return fail(concat("the metadata has '", name, "' twice"));
        }
        name_ = name;
        return true;
      default:
        for (std::size_t i = 0; i < kFields.size(); ++i) {
          if (name != kFields[i]) continue;
          if (has_[i]) return fail(concat("'", name_, "' has ", name, " twice"));
          has_[i] = true;
          place_ = static_cast<Place>(static_cast<int>(Place::kDtype) + static_cast<int>(i));
          return true;
        }
        return fail(concat("'", name_, "' has an unknown field '", name, "'"));
    }
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(name_, text);
      return true;
    }
    if (place_ != Place::kDtype) return unexpected("a text");
    for (const auto& [name, dtype] : kDtypes) {
      if (name != text) continue;
      tensor_.dtype = dtype;
      place_ = Place::kFields;
      return true;
    }
    return fail(concat("'", name_, "' has dtype '", text,
                       "'; known are F64, F32, BF16, F16, I64, I32, U8 and BOOL"));
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (number > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(concat("'", name_, "' has a number that is too large: ", number));
    }
    const auto value = static_cast<std::int64_t>(number);
    if (place_ == Place::kSizes) {
      tensor_.sizes.push_back(value);
    } else if (place_ == Place::kOffsets && offsets_ < ends_.size()) {
      ends_[offsets_++] = value;
    } else {
      return unexpected("a number");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kBegin) {
      place_ = Place::kNames;
    } else if (place_ == Place::kMetadataBegin) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTensorBegin) {
      place_ = Place::kFields;
      tensor_ = {};
      tensor_.name = name_;
      has_ = {};
      offsets_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kFields) {
      if (!finish_tensor()) return false;
    }
    place_ = Place::kNames;  // At the end of all, nothing can follow.
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kSizes;
    } else if (place_ == Place::kDataOffsets) {
      place_ = Place::kOffsets;
    } else {
      return unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kFields;
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(concat("its header is no JSON from byte ", position, " on"));
  }

 private:
  enum class Place {
    kBegin,
    kNames,
    kMetadataBegin,
    kMetadata,
    kTensorBegin,
    kFields,
    kDtype,        ///< These three in the order of kFields.
    kShape,        //
    kDataOffsets,  //
    kSizes,
    kOffsets,
  };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool unexpected(const char* what) {
    return fail(concat("its header has ", what, " where none can be",
                       name_.empty() ? "" : concat(", at '", name_, "'")));
  }

  bool finish_tensor() {
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (!has_[i]) return fail(concat("'", name_, "' has no ", kFields[i]));
    }
    if (offsets_ != ends_.size() || ends_[0] > ends_[1]) {
      return fail(concat("the data_offsets of '", name_, "' are no range"));
    }
    tensor_.begin = ends_[0];
    tensor_.bytes = ends_[1] - ends_[0];
    const auto bytes = byte_count(tensor_);
    if (!bytes) return fail(concat("'", name_, "' has a shape that is too large"));
    if (*bytes != tensor_.bytes) {
      return fail(concat("'", name_, "' has ", tensor_.bytes,
                         " bytes of data, which is not what its shape and dtype need"));
    }
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  Place place_ = Place::kBegin;
  std::string problem_;
  std::string name_;
  std::unordered_set<std::string> names_;
  TensorInfo tensor_;
  std::array<bool, 3> has_{};
  std::array<std::int64_t, 2> ends_{};
  std::size_t offsets_ = 0;
  SafetensorsHeader header_;
};

/// The data must follow each other without holes and end where the file does.
void check_places(const std::vector<TensorInfo>& tensors, std::int64_t data_bytes) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    CONVOY_REQUIRE(tensor.begin >= end, kInvalidArgument, "the data of '", tensors[i - 1].name,
                   "' and '", tensor.name, "' overlap");
    CONVOY_REQUIRE(tensor.begin == end, kInvalidArgument, "there is a hole of ", tensor.begin - end,
                   " bytes before the data of '", tensor.name, "'");
    end += tensor.bytes;
  }
  CONVOY_REQUIRE(end <= data_bytes, kInvalidArgument, "it is cut short: ", end - data_bytes,
                 " bytes of data are missing",
                 tensors.empty() ? "" : concat(", of '", tensors.back().name, "' at the end"));
  CONVOY_REQUIRE(end == data_bytes, kInvalidArgument, "there are ", data_bytes - end,
                 " bytes behind the data of its last tensor");
}

}  // namespace

SafetensorsHeader parse_header(std::string_view json, std::int64_t data_bytes) {
  CONVOY_REQUIRE(json.starts_with('{'), kInvalidArgument,
                 "its header does not begin with '{': it is no safetensors file");
  HeaderEvents events;
  const bool ok = Json::sax_parse(json, &events);
  CONVOY_REQUIRE(ok, kInvalidArgument, events.problem());
  SafetensorsHeader header = events.take();
  // Empty tensors come before the one whose data begin at the same byte.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
                   });
  check_places(header.tensors, data_bytes);
  return header;
}

void place_tensors(std::vector<TensorInfo>& tensors) {
  std::int64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    CONVOY_REQUIRE(name_of(tensor.dtype), kInvalidArgument, "'", tensor.name, "' is ", tensor.dtype,
                   ", which cannot be stored in a safetensors file");
    const auto bytes = byte_count(tensor);
    CONVOY_REQUIRE(bytes, kInvalidArgument, "'", tensor.name, "' has no size in bytes");
    tensor.begin = end;
    tensor.bytes = *bytes;
    end += *bytes;
  }
}

std::string format_header(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  const auto written = [](const Json& value) {
    try {
      return value.dump();
    } catch (const Json::exception&) {
      throw Error(ErrorKind::kInvalidArgument,
                  "a name or text for a safetensors file is not UTF-8: " +
                      value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  };
  std::string text = "{";
  if (!metadata.empty()) text += concat('"', kMetadataKey, "\":", written(metadata));
  std::unordered_set<std::string_view> names{kMetadataKey};
  for (const TensorInfo& tensor : tensors) {
    CONVOY_REQUIRE(names.insert(tensor.name).second, kInvalidArgument, "the name '", tensor.name,
                   "' comes twice, or is the format's own");
    if (text.size() > 1) text += ',';
    text += written(tensor.name) + ":{\"dtype\":\"";
    text += name_of(tensor.dtype).value();
    text += "\",\"shape\":" + Json(tensor.sizes).dump() + ",\"data_offsets\":[";
    text += std::to_string(tensor.begin) + "," + std::to_string(tensor.begin + tensor.bytes) + "]}";
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  CONVOY_REQUIRE(static_cast<std::int64_t>(text.size()) <= kMostHeaderBytes, kInvalidArgument,
                 "a header of ", text.size(), " bytes is longer than ", kMostHeaderBytes,
                 "; store the tensors in several files");
  return text;
}

}  // namespace convoy::saving
