// train_gpt --dtype bf16: the same bits under every strategy, and losses near those of float32.
#include "support/catch.h"
#include "train_gpt/runs.h"

#include <algorithm>
#include <cmath>

using namespace convoy::testing;

namespace {

std::string final_hash(const TrainRun& run) {
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == 0);
  return run.of("end").at(0).at("params_xxh3");
}

}  // namespace

TEST_CASE("train_gpt: bf16 has the same bits under every strategy at worlds 1 to 3") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(40'000, 1));
  const auto hash = [&](int world, std::vector<std::string> flags) {
    // Low-precision products are slow here: as few tokens as make three steps of every rank.
    flags.insert(flags.end(), {"--data", data, "--dtype", "bf16", "--layers", "1", "--seq", "16",
                               "--micro-batch", "2", "--global-batch", "12", "--steps", "3",
                               "--eval-windows", "3"});
    return final_hash(train(scratch, world, flags));
  };
  REQUIRE(hash(1, {"--strategy", "fsdp", "--tie-embeddings"}) ==
          hash(1, {"--strategy", "single", "--tie-embeddings"}));
  for (const int world : {2, 3}) {
    CAPTURE(world);
    const std::string ddp = hash(world, {"--strategy", "ddp"});
    REQUIRE(hash(world, {"--strategy", "fsdp"}) == ddp);
    REQUIRE(hash(world, {"--strategy", "fsdp", "--no-shared-gather"}) == ddp);
  }
}

TEST_CASE("train_gpt: bf16 losses stay within a bound of float32 over 30 steps") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(40'000, 1));
  const auto losses = [&](const std::string& dtype) {
    const TrainRun run = train(scratch, 1,
                               {"--data", data, "--dtype", dtype, "--steps", "30", "--micro-batch",
                                "4", "--warmup-steps", "3"});
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    REQUIRE(run.events.front()["config"]["dtype"] == (dtype == "bfloat16" ? "bf16" : "fp32"));
    std::vector<double> values;
    for (const Json& step : run.of("step")) values.push_back(step.at("loss"));
    return values;
  };
  const auto low = losses("bfloat16");
  const auto full = losses("float32");
  REQUIRE(low.size() == 30);
  REQUIRE(full.size() == 30);
  REQUIRE(low != full);
  double furthest = 0;
  for (std::size_t i = 0; i < low.size(); ++i) {
    furthest = std::max(furthest, std::abs(low[i] - full[i]) / full[i]);
  }
  CAPTURE(furthest);
  REQUIRE(furthest < 0.005);
  REQUIRE(low.back() < low.front() - 0.5);
}
