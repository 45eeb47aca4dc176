// safetensors files: what is written is read back, what is broken is named.
#include "checkpoint/safetensors_header.h"
#include "convoy/base/check.h"
#include "convoy/checkpoint/safetensors_writer.h"
#include "support/catch.h"
#include "support/check.h"
#include "train_gpt/scratch.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstring>
#include <fstream>

#include <sys/stat.h>

namespace convoy {
namespace {

using saving::Metadata;
using saving::SafetensorsFile;
using saving::StateDict;
using test::check_same_bits;
using test::check_throws;
using testing::read_whole;
using testing::Scratch;

/// A file of this header and data.
std::string file_of(const std::string& header, const std::string& data = {}) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string tensor_json(const std::string& name, const std::string& shape, int begin, int end,
                        const std::string& dtype = "U8") {
  return concat('"', name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":[",
                begin, ",", end, "]}");
}

void check_refused(const Scratch& scratch, const std::string& bytes, const std::string& reason) {
  const std::string path = scratch.write("bad.safetensors", bytes);
  CAPTURE(reason);
  const Error error = check_throws(ErrorKind::kInvalidArgument, reason,
                                   [&] { (void)SafetensorsFile(std::filesystem::path(path)); });
  CHECK(std::string(error.what()).find(path) != std::string::npos);
}

StateDict one_of_each() {
  StateDict tensors;
  tensors.insert("b.F32", torch::randn({3, 5}));
  tensors.insert("a.U8", torch::arange(7, torch::kByte));
  tensors.insert("F64 \"quoted\" \xC3\xA4", torch::randn({2, 1, 3}, torch::kDouble));
  tensors.insert("BF16", torch::randn({9}).to(torch::kBFloat16));
  tensors.insert("F16", torch::randn({1}).to(torch::kHalf));
  tensors.insert("I64", torch::tensor({std::int64_t{1} << 60, std::int64_t{-1}}));
  tensors.insert("I32", torch::arange(-3, 3, torch::kInt));
  tensors.insert("BOOL", torch::tensor({true, false, true}));
  tensors.insert("scalar", torch::tensor(1.5F));
  tensors.insert("empty", torch::zeros({0, 4}));
  return tensors;
}

}  // namespace

TEST_CASE("safetensors: every dtype and shape comes back, and the texts") {
  const Scratch scratch;
  const auto path = scratch.path() / "all.safetensors";
  const StateDict tensors = one_of_each();
  save_safetensors(path, tensors, {{"format", "pt"}, {"note", "line\n\xE2\x82\xAC"}});
  const StateDict loaded = load_safetensors(path);
  CHECK(loaded.size() == tensors.size());
  for (const auto& item : tensors) check_same_bits(loaded[item.key()], item.value(), item.key());
  const SafetensorsFile file(path);
  CHECK(file.metadata() == Metadata{{"format", "pt"}, {"note", "line\n\xE2\x82\xAC"}});
  for (const auto& info : file.tensors()) {
    CHECK(info.begin % static_cast<std::int64_t>(c10::elementSize(info.dtype)) == 0);
  }
  // The bytes: a length, JSON filled up to 8 bytes, the data.
  const std::string bytes = read_whole(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  const auto json = nlohmann::json::parse(bytes.substr(8, length));
  CHECK(json["b.F32"]["dtype"] == "F32");
  CHECK(json["b.F32"]["shape"] == nlohmann::json({3, 5}));
  const std::size_t begin = json["b.F32"]["data_offsets"][0];
  CHECK(std::memcmp(bytes.data() + 8 + length + begin, tensors["b.F32"].const_data_ptr(), 60) == 0);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);
}

TEST_CASE("C095: broken safetensors files are refused by name and cause") {
  const Scratch scratch;
  const std::string good = tensor_json("x", "[4]", 0, 4);
  const std::string ones(8, '\xff');
  check_refused(scratch, ones + "{}", "announce a header of 18446744073709551615 bytes");
  check_refused(scratch, file_of("{" + good + "}", "1234").substr(0, 20), "cut short");
  check_refused(scratch, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a",
                "cut short");
  check_refused(scratch, "12345678", "8 bytes");
  check_refused(scratch, "", "0 bytes");
  check_refused(scratch, file_of("[]"), "does not begin with '{'");
  check_refused(scratch, file_of("{" + good), "no JSON from byte");
  check_refused(scratch, file_of("{" + good + "} x", "1234"), "no JSON from byte");
  check_refused(scratch, file_of("{" + good + "}", "123"), "1 bytes of data are missing, of 'x'");
  check_refused(scratch, file_of("{" + good + "}", "12345"), "1 bytes behind");
  check_refused(scratch, file_of("{" + good + "," + good + "}", "1234"), "'x' comes twice");
  check_refused(scratch, file_of("{" + good + "," + tensor_json("y", "[4]", 3, 7) + "}", "1234567"),
                "'x' and 'y' overlap");
  check_refused(scratch, file_of("{" + good + "," + tensor_json("y", "[2]", 5, 7) + "}", "1234567"),
                "hole of 1 bytes before the data of 'y'");
  check_refused(scratch, file_of("{" + tensor_json("x", "[4]", 0, 4, "F8_E4M3") + "}", "1234"),
                "'x' has dtype 'F8_E4M3'");
  check_refused(scratch, file_of("{" + tensor_json("x", "[3]", 0, 4) + "}", "1234"),
                "'x' has 4 bytes of data");
  check_refused(scratch,
                file_of("{" + tensor_json("x", "[4294967296,4294967296,4294967296]", 0, 0) + "}"),
                "'x' has a shape that is too large");
  check_refused(scratch, file_of("{" + tensor_json("x", "[-4]", 0, 4) + "}", "1234"), "negative");
  check_refused(scratch, file_of("{" + tensor_json("x", "[4.0]", 0, 4) + "}", "1234"), "fraction");
  check_refused(scratch, file_of("{" + tensor_json("x", "[[4]]", 0, 4) + "}", "1234"), "a list");
  check_refused(scratch, file_of("{" + tensor_json("x", "[4]", 4, 0) + "}", "1234"), "no range");
  check_refused(scratch, file_of(R"({"x":{"dtype":"U8","shape":[4]}})", "1234"),
                "'x' has no data_offsets");
  check_refused(scratch, file_of(R"({"x":{"dtype":"U8","dtype":"U8"}})", "1234"), "dtype twice");
  check_refused(scratch, file_of(R"({"x":{"shift":1}})"), "unknown field 'shift'");
  check_refused(scratch, file_of(R"({"x":3})"), "a number where none can be, at 'x'");
  check_refused(scratch, file_of(R"({"__metadata__":{"a":1}})"), "a number where none can be");
  check_refused(scratch, file_of(R"({"__metadata__":{"a":"1","a":"2"}})"), "'a' twice");
  check_refused(scratch, file_of("{\"x\xff\":{}}"), "no JSON");
  check_throws(ErrorKind::kInvalidArgument, "No such file",
               [&] { (void)load_safetensors(scratch.path() / "none"); });
  check_throws(ErrorKind::kInvalidArgument, "it is a folder",
               [&] { (void)load_safetensors(scratch.path()); });
  const std::string bools =
      scratch.write("bools", file_of("{" + tensor_json("x", "[2]", 0, 2, "BOOL") + "}", "\1\2"));
  check_throws(ErrorKind::kInvalidArgument, "'x' is BOOL", [&] { (void)load_safetensors(bools); });
  const SafetensorsFile file(bools);
  char byte = 0;
  file.read(*file.find("x"), 0, &byte, 1);  // That one is a bool.
  check_throws(ErrorKind::kInvalidArgument, "'x' is BOOL",
               [&] { file.read(*file.find("x"), 1, &byte, 1); });
}

TEST_CASE("C095: sizes whose product is too large are refused where one of them is 0 too") {
  const Scratch scratch;
  for (const char* shape : {"[0,4611686018427387904,4611686018427387904]",
                            "[4611686018427387904,4611686018427387904,0]",
                            "[4611686018427387904,0]", "[0,9223372036854775807]"}) {
    const std::string header = "{" + tensor_json("x", shape, 0, 0, "F32") + "}";
    check_refused(scratch, file_of(header), "'x' has a shape that is too large");
  }
  const std::string fine = scratch.write(
      "fine", file_of("{" + tensor_json("x", "[0,2305843009213693951]", 0, 0, "F32") + "}"));
  CHECK(load_safetensors(fine)["x"].size(1) == 2305843009213693951);
}

TEST_CASE("C095: what is no file is refused at once in reading and in writing") {
  const Scratch scratch;
  const auto pipe = scratch.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto refuse = [](const std::filesystem::path& path, const char* what) {
    CAPTURE(path);
    const auto begin = std::chrono::steady_clock::now();
    const Error read =
        check_throws(ErrorKind::kInvalidArgument, what, [&] { (void)load_safetensors(path); });
    CHECK(std::string(read.what()).find(path.native()) != std::string::npos);
    check_throws(ErrorKind::kSystem, path.native(),
                 [&] { saving::SafetensorsWriter(path, {}, {}); });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  };
  refuse(pipe, "it is a pipe");
  refuse("/dev/null", "it is a device");
  refuse(scratch.path(), "it is a folder");
}

TEST_CASE("C095: a file of texts only and one of many tensors are fine") {
  const Scratch scratch;
  const auto path = scratch.path() / "file";
  save_safetensors(path, StateDict(), {{"key", "value"}});
  CHECK(load_safetensors(path).is_empty());
  CHECK(SafetensorsFile(path).metadata().at("key") == "value");
  save_safetensors(path, StateDict());
  CHECK(SafetensorsFile(path).metadata().empty());

  // Without a file: to sync 80 MB takes long on a busy disk.
  constexpr int kMany = 1'000'000;
  std::vector<saving::TensorInfo> infos(kMany);
  for (int i = 0; i < kMany; ++i) {
    infos[static_cast<std::size_t>(i)].name = "t" + std::to_string(i);
    infos[static_cast<std::size_t>(i)].sizes = {1};
  }
  saving::place_tensors(infos);
  const auto header = saving::parse_header(saving::format_header(infos, {}), 4 * kMany);
  CHECK(header.tensors.size() == kMany);
  CHECK(header.tensors.back().name == "t999999");
  CHECK(header.tensors.back().begin == 4 * (kMany - 1));
}

TEST_CASE("C097: aliases are stored once and tied again, views are stored as they look") {
  const Scratch scratch;
  const auto path = scratch.path() / "file";
  const auto embedding = torch::randn({100, 10});
  StateDict tied;
  tied.insert("tok.weight", embedding);
  tied.insert("head.weight", embedding.view({100, 10}));
  save_safetensors(path, tied);
  CHECK(std::filesystem::file_size(path) < 4000 + 300);
  CHECK(SafetensorsFile(path).metadata() == Metadata{{"head.weight", "tok.weight"}});
  const StateDict loaded = load_safetensors(path);
  check_same_bits(loaded["head.weight"], embedding);
  CHECK(loaded["head.weight"].data_ptr() == loaded["tok.weight"].data_ptr());

  StateDict view;
  view.insert("rows", torch::randn({1000, 10}).narrow(0, 0, 2));
  save_safetensors(path, view);
  CHECK(std::filesystem::file_size(path) < 80 + 300);
  check_same_bits(load_safetensors(path)["rows"], view["rows"]);

  StateDict turned;
  turned.insert("t", torch::randn({3, 4, 5}).permute({2, 0, 1}));
  save_safetensors(path, turned);
  check_same_bits(load_safetensors(path)["t"], turned["t"].contiguous());

  StateDict partly;
  partly.insert("all", embedding);
  partly.insert("some", embedding.narrow(0, 5, 20));
  check_throws(ErrorKind::kInvalidArgument, "'all' and 'some' share part of their memory",
               [&] { save_safetensors(path, partly); });
  check_same_bits(load_safetensors(path)["t"], turned["t"].contiguous());  // Still the last one.
}

TEST_CASE("safetensors: what cannot be stored is refused, and the file before it stays") {
  const Scratch scratch;
  const auto path = scratch.path() / "file";
  const auto refuse = [&](const std::string& name, const at::Tensor& tensor, const char* part) {
    StateDict tensors;
    tensors.insert(name, tensor);
    check_throws(ErrorKind::kInvalidArgument, part, [&] { save_safetensors(path, tensors); });
  };
  refuse("z", torch::zeros({2}, torch::kComplexFloat), "'z' is ComplexFloat");
  refuse("s", torch::zeros({2, 2}).to_sparse(), "'s' is a");
  refuse("bad \xff", torch::zeros({2}), "is not UTF-8");
  refuse("__metadata__", torch::zeros({2}), "'__metadata__' comes twice, or is the format's own");
  CHECK(std::filesystem::is_empty(scratch.path()));
  check_throws(ErrorKind::kSystem, "cannot write '/proc/none/",
               [&] { save_safetensors("/proc/none/file", StateDict()); });
  saving::SafetensorsWriter writer(path, {{"x", at::kByte, {4}}}, {});
  writer.write("123", 3);
  check_throws(ErrorKind::kMisuse, "lacks 1 bytes", [&] { writer.finish(); });
  check_throws(ErrorKind::kMisuse, "more data", [&] { writer.write("45", 2); });
}

}  // namespace convoy
