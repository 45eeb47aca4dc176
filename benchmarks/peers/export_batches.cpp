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

int export_batches(int argc, char** argv) {
  cxxopts::Options options("export_batches",
                           "Writes [windows, seq + 1] bytes as tensor \"windows\" (uint8): window "
                           "k is the k-th that train_gpt trains with the same flags.");
  options.add_options()("data", "file or folder", cxxopts::value<std::vector<std::string>>())(
      "seq", "inputs of a window", cxxopts::value<std::int64_t>())("windows", "how many",
                                                                   cxxopts::value<std::int64_t>())(
      "seed", "train_gpt's --seed", cxxopts::value<std::uint64_t>()->default_value("1"))(
      "eval-windows", "train_gpt's --eval-windows", cxxopts::value<std::int64_t>())(
      "out", "file to write", cxxopts::value<std::string>());
  const auto values = options.parse(argc, argv);
  for (const char* name : {"data", "seq", "windows", "eval-windows", "out"}) {
    CONVOY_REQUIRE(values.count(name) > 0, kInvalidArgument, "--", name, " is missing");
  }
  const auto seq = values["seq"].as<std::int64_t>();
  const auto text = data::Text::open(values["data"].as<std::vector<std::string>>());
  const data::TextSplit split(text.size(), seq + 1, values["eval-windows"].as<std::int64_t>());
  const data::WindowOrder order(split.train_bytes(), seq, values["seed"].as<std::uint64_t>());
  const data::TokenBatch batch =
      data::TokenWindows(text, split, order).train(0, values["windows"].as<std::int64_t>());
  const at::Tensor last = batch.targets.narrow(1, seq - 1, 1);
  saving::StateDict tensors;
  tensors.insert("windows", at::cat({batch.inputs, last}, 1).to(at::kByte).contiguous());
  save_safetensors(values["out"].as<std::string>(), tensors);
  return 0;
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, convoy::export_batches); }
