// Writes the windows of text that train_gpt trains, in its order, for programs in other languages.
#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/checkpoint/safetensors.h"
#include "convoy/data/split.h"
#include "convoy/data/text.h"
#include "convoy/data/token_windows.h"
#include "convoy/data/window_order.h"
#include "convoy/rendezvous/guarded_main.h"

#include <ATen/ATen.h>

#include <cxxopts.hpp>

#include <limits>
#include <string>
#include <vector>

namespace convoy {
namespace {

/// Numbers are read by parse_int: cxxopts' own reader does not compile without warnings here.
std::int64_t whole(const cxxopts::ParseResult& values, const char* name) {
  const auto text = values[name].as<std::string>();
  const auto number = parse_int(text, 0, std::numeric_limits<std::int64_t>::max());
  CONVOY_REQUIRE(number, kInvalidArgument, "--", name, " takes a whole number, got '", text, "'");
  return *number;
}

int export_batches(int argc, char** argv) {
  cxxopts::Options options("export_batches",
                           "Writes [windows, seq + 1] bytes as tensor \"windows\" (uint8): window "
                           "k is the k-th that train_gpt trains with the same flags.");
  const auto text_value = [] { return cxxopts::value<std::string>(); };
  options.add_options()("data", "file or folder", text_value())(
      "seq", "inputs of a window", text_value())("windows", "how many", text_value())(
      "seed", "train_gpt's --seed", text_value()->default_value("1"))(
      "eval-windows", "train_gpt's --eval-windows", text_value())("out", "file to write",
                                                                  text_value());
  const auto values = options.parse(argc, argv);
  for (const char* name : {"data", "seq", "windows", "eval-windows", "out"}) {
    CONVOY_REQUIRE(values.count(name) > 0, kInvalidArgument, "--", name, " is missing");
  }
  const auto seq = whole(values, "seq");
  const std::vector<std::string> paths{values["data"].as<std::string>()};
  const auto text = data::Text::open(paths);
  const data::TextSplit split(text.size(), seq + 1, whole(values, "eval-windows"));
  const data::WindowOrder order(split.train_bytes(), seq,
                                static_cast<std::uint64_t>(whole(values, "seed")));
  const data::TokenBatch batch =
      data::TokenWindows(text, split, order).train(0, whole(values, "windows"));
  const at::Tensor last = batch.targets.narrow(1, seq - 1, 1);
  saving::StateDict tensors;
  tensors.insert("windows", at::cat({batch.inputs, last}, 1).to(at::kByte).contiguous());
  save_safetensors(values["out"].as<std::string>(), tensors);
  return 0;
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::export_batches); }
