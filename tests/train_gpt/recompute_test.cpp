// train_gpt --checkpoint: the same bits, and fewer bytes of activations.
#include "support/catch.h"
#include "train_gpt/runs.h"

using namespace convoy::testing;

TEST_CASE("train_gpt: checkpointed blocks have the same bits and need less memory") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(40'000, 1));
  const auto run_as = [&](int world, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data", data, "--layers", "4", "--micro-batch", "4",
                               "--global-batch", "8", "--steps", "3", "--eval-windows", "3"});
    TrainRun run = train(scratch, world, flags);
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    return run;
  };
  const auto activations = [](const TrainRun& run) {
    return run.events.back()["memory"][0]["activations_peak"].get<double>();
  };
  const auto compare = [&](const TrainRun& saved, const TrainRun& plain) {
    REQUIRE(saved.events.front()["config"]["checkpoint"] == true);
    REQUIRE(plain.events.front()["config"]["checkpoint"] == false);
    REQUIRE(saved.loss_texts() == plain.loss_texts());
    REQUIRE(saved.events.back()["params_xxh3"] == plain.events.back()["params_xxh3"]);
    REQUIRE(activations(saved) < 0.6 * activations(plain));
  };
  compare(run_as(1, {"--strategy=single", "--checkpoint"}), run_as(1, {"--strategy=single"}));
  const TrainRun plain = run_as(2, {"--strategy=ddp"});
  compare(run_as(2, {"--strategy=ddp", "--checkpoint"}), plain);
  compare(run_as(2, {"--strategy=fsdp", "--no-shared-gather", "--checkpoint"}), plain);
}
