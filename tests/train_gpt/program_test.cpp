// train_gpt as a user runs it: events, agreement of the strategies, wrong input.
#include "convoy/base/hash.h"
#include "support/catch.h"
#include "train_gpt/runs.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>

using namespace convoy::testing;

namespace {

std::string text_file(const Scratch& scratch) {
  return scratch.write("text.txt", make_text(40'000, 1));
}

void require_keys(const Json& object, const std::vector<std::string>& wanted) {
  for (const std::string& key : wanted) {
    INFO(object.dump());
    CAPTURE(key);
    REQUIRE(object.contains(key));
  }
}

/// One line on standard error, said once, and the exit code for wrong input.
void require_refused(const TrainRun& run, const std::string& text) {
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == 2);
  const std::size_t at = run.result.err.find(text);
  REQUIRE(at != std::string::npos);
  const std::size_t block = run.result.err.find("convoyrun: first failure");
  REQUIRE(run.result.err.find("error:") == run.result.err.substr(0, block).rfind("error:"));
}

}  // namespace

TEST_CASE("train_gpt: the events have the fields that other programs read") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const TrainRun run = train(scratch, 1, {"--data", data, "--eval-every", "2", "--seed", "3"});
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == 0);
  const Json& start = run.events.front();
  require_keys(start, {"event", "schema", "strategy", "world", "threads", "parameters", "config",
                       "data", "convoy", "libtorch"});
  REQUIRE(start["event"] == "start");
  REQUIRE(start["schema"] == 1);
  REQUIRE(start["strategy"] == "single");
  REQUIRE(start["world"] == 1);
  REQUIRE(start["threads"] == 1);
  REQUIRE(start["config"]["seed"] == 3);
  REQUIRE(start["config"]["micro-batch"] == 8);
  REQUIRE(start["data"]["bytes"] == 40'000);
  std::array<char, 17> hash{};
  std::snprintf(hash.data(), hash.size(), "%016llx",
                static_cast<unsigned long long>(convoy::hash64(read_whole(data))));
  REQUIRE(start["data"]["xxh3"] == hash.data());

  const auto steps = run.of("step");
  REQUIRE(steps.size() == 4);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    require_keys(steps[i], {"loss", "lr", "grad_norm", "step_s", "data_s", "comm_wait_s", "tokens",
                            "tokens_per_s", "optimizer_s"});
    REQUIRE(steps[i]["step"] == i + 1);
    REQUIRE(steps[i]["tokens"] == 8 * 32);
    REQUIRE(steps[i]["step_s"].get<double>() >= steps[i]["optimizer_s"].get<double>());
  }
  REQUIRE(steps[0]["loss"].get<double>() == Approx(std::log(256.0)).margin(0.2));

  const auto evaluations = run.of("eval");
  REQUIRE(evaluations.size() == 2);  // After step 2, and the last one.
  REQUIRE(evaluations[0]["step"] == 2);
  REQUIRE(evaluations[1]["step"] == 4);
  REQUIRE(evaluations[1]["windows"] == 12);

  const Json& end = run.events.back();
  require_keys(end, {"event", "step", "loss", "validation_loss", "params_xxh3", "comm", "memory",
                     "seconds", "overlap_share"});
  REQUIRE(end["event"] == "end");
  REQUIRE(end["loss"] == steps.back()["loss"]);
  REQUIRE(end["validation_loss"] == evaluations[1]["loss"]);
  REQUIRE(end["params_xxh3"].get<std::string>().size() == 16);
  REQUIRE(end["memory"].size() == 1);
  const Json& memory = end["memory"][0];
  require_keys(memory, {"rss_peak", "pss", "parameters", "gradients", "optimizer", "buffers",
                        "activations_peak", "other"});
  const std::int64_t bytes = 4 * start["parameters"].get<std::int64_t>();
  REQUIRE(memory["parameters"] == bytes);
  REQUIRE(memory["gradients"] == bytes);
  REQUIRE(memory["optimizer"] == 2 * bytes);
  REQUIRE(memory["buffers"] == 0);
  // At least what the blocks keep of their inputs, for 8 windows of 32 tokens.
  REQUIRE(memory["activations_peak"].get<std::int64_t>() > 2 * 8 * 32 * 32 * 4);
  REQUIRE(memory["rss_peak"].get<std::int64_t>() > bytes * 4);
}

TEST_CASE("train_gpt: a run repeats to the bit, another seed does not") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const auto hash = [&](const char* seed) {
    const TrainRun run = train(scratch, 1, {"--data", data, "--seed", seed});
    REQUIRE(run.result.exit_code == 0);
    return run.events.back().at("params_xxh3").get<std::string>();
  };
  const std::string first = hash("1");
  REQUIRE(hash("1") == first);
  REQUIRE(hash("2") != first);
}

TEST_CASE("train_gpt: accumulation trains what the whole batch trains") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const TrainRun whole = train(scratch, 1, {"--data", data, "--global-batch=8"});
  const TrainRun parts = train(scratch, 1, {"--data", data, "--global-batch=8", "--micro-batch=2"});
  REQUIRE(whole.result.exit_code == 0);
  REQUIRE(parts.result.exit_code == 0);
  const auto left = whole.of("step");
  const auto right = parts.of("step");
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    REQUIRE(left[i]["loss"].get<double>() == Approx(right[i]["loss"].get<double>()).epsilon(1e-5));
    REQUIRE(left[i]["grad_norm"].get<double>() ==
            Approx(right[i]["grad_norm"].get<double>()).epsilon(1e-4));
  }
}

TEST_CASE("train_gpt: ddp and fsdp have the same bits, and single is near, at worlds 1 to 3") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const std::vector<std::string> common{"--data", data, "--global-batch=12", "--micro-batch=2"};
  const auto run_as = [&](int world, std::vector<std::string> flags) {
    flags.insert(flags.end(), common.begin(), common.end());
    TrainRun run = train(scratch, world, flags);
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    REQUIRE(run.of("step").size() == 4);
    return run;
  };
  const TrainRun single = run_as(1, {"--strategy=single"});
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const TrainRun ddp = run_as(world, {"--strategy=ddp", "--bucket-mb=0.05"});
    REQUIRE(ddp.events.front()["world"] == world);
    for (const auto& flags : std::vector<std::vector<std::string>>{
             {"--strategy=fsdp"},
             {"--strategy=fsdp", "--no-shared-gather"},
             {"--strategy=fsdp", "--no-shared-gather", "--no-reshard-after-forward"}}) {
      const TrainRun fsdp = run_as(world, flags);
      REQUIRE(fsdp.loss_texts() == ddp.loss_texts());
      REQUIRE(fsdp.events.back()["params_xxh3"] == ddp.events.back()["params_xxh3"]);
      REQUIRE(fsdp.events.back()["memory"].size() == static_cast<std::size_t>(world));
    }
    for (std::size_t i = 0; i < 4; ++i) {
      REQUIRE(ddp.of("step")[i]["loss"].get<double>() ==
              Approx(single.of("step")[i]["loss"].get<double>()).epsilon(1e-3));
    }
    REQUIRE(ddp.events.back()["validation_loss"].get<double>() ==
            Approx(single.events.back()["validation_loss"].get<double>()).epsilon(1e-3));
  }
}

TEST_CASE("train_gpt: validation counts every window once, equal at worlds 1 to 4") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  double reference = 0;
  for (const int world : {1, 2, 3, 4}) {
    // Without learning, the model is the same at every world size.
    const TrainRun run = train(scratch, world,
                               {"--data", data, "--strategy=ddp", "--lr=0", "--eval-windows=37",
                                "--micro-batch=3", "--steps=1"});
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    REQUIRE(run.of("eval").back()["windows"] == 37);
    const auto loss = run.of("eval").back()["loss"].get<double>();
    if (world == 1) reference = loss;
    REQUIRE(std::abs(loss - reference) < 1e-6);
  }
}

TEST_CASE("train_gpt: wrong input is one line, once, and exit code 2") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  require_refused(train(scratch, 1, {"--data", data, "--stpes", "3"}), "did you mean '--steps'?");
  require_refused(train(scratch, 1, {"--data", data, "--strategy", "dpd"}), "did you mean 'ddp'?");
  require_refused(train(scratch, 1, {"--data", (scratch.path() / "no.txt").native()}),
                  "no such file or folder");
  require_refused(train(scratch, 1, {"--data", scratch.write("short.txt", "to be")}),
                  "the text is too small: it has 5 bytes");
  require_refused(train(scratch, 1, {"--data", scratch.write("empty.txt", "")}), "not one byte");
  require_refused(train(scratch, 1, {"--data", data, "--json", "/no/such/folder/x"}),
                  "cannot write --json");
}

TEST_CASE("train_gpt: wrong input of several ranks is said by one of them") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  require_refused(train(scratch, 3, {"--data", data, "--global-batch", "10"}),
                  "--global-batch 10 does not divide into 3 ranks");
  require_refused(train(scratch, 2, {"--data", data, "--strategy", "single"}),
                  "--strategy single is one process, but 2 ranks were started");
  require_refused(train(scratch, 2, {"--data", data, "--model", "smal"}), "did you mean 'small'?");
  require_refused(train(scratch, 2, {"--data", data, "--json", "/no/such/folder/x"}),
                  "cannot write --json '/no/such/folder/x'");
}

TEST_CASE("train_gpt: a flag without effect is one line of rank 0 and no error") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const auto notes = [&](const char* strategy) {
    const TrainRun run = train(
        scratch, 2, {"--data", data, "--steps=1", strategy, "--bucket-mb=2", "--no-shared-gather"});
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    std::vector<std::string> found;
    std::istringstream lines(run.result.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("no effect") != std::string::npos) found.push_back(line);
    }
    return found;
  };
  REQUIRE(notes("--strategy=fsdp") ==
          std::vector<std::string>{"[0] note: --bucket-mb has no effect with --strategy fsdp"});
  REQUIRE(
      notes("--strategy=ddp") ==
      std::vector<std::string>{"[0] note: --no-shared-gather has no effect with --strategy ddp"});
}

TEST_CASE("train_gpt: a failure in the run is an event, and exit code 1") {
  const Scratch scratch;
  const std::string data = text_file(scratch);
  // The log's device is full.
  const TrainRun run = train(scratch, 1, {"--data", data, "--json", "/dev/full"});
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == 1);
  REQUIRE(run.result.err.find("No space left on device") != std::string::npos);
}

TEST_CASE("train_gpt: what is printed stays out of the events where standard output is closed") {
  const Scratch scratch;
  const std::string events = (scratch.path() / "events").native();
  const ProgramResult result =
      run_program({"/bin/sh", "-c",
                   "exec " CONVOY_TEST_TRAIN_GPT
                   " --model tiny --layers 1 --dim 16 --heads 2 --seq 16 --steps 2 --threads 1"
                   " --eval-windows 2 --sample 0 --data " +
                       text_file(scratch) + " --json " + events + " >&-"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::istringstream lines(read_whole(events));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    REQUIRE(Json::parse(line).contains("event"));
  }
  REQUIRE(count == 5);  // start, two steps, eval, end
}

TEST_CASE("train_gpt: help, version and sample go to standard output") {
  const ProgramResult help = run_program({CONVOY_TEST_TRAIN_GPT, "--help"});
  REQUIRE(help.exit_code == 0);
  REQUIRE(help.out.find("--no-shared-gather") != std::string::npos);
  REQUIRE(help.err.empty());
  const ProgramResult version = run_program({CONVOY_TEST_TRAIN_GPT, "--version"});
  REQUIRE(version.exit_code == 0);
  REQUIRE(version.out.find("train_gpt ") == 0);
  const Scratch scratch;
  const std::string data = text_file(scratch);
  const TrainRun run =
      train(scratch, 2, {"--data", data, "--strategy=fsdp", "--sample=12", "--prompt=KING:"});
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == 0);
  REQUIRE(run.result.out.find("KING:") != std::string::npos);
  REQUIRE(run.result.out.find("step 4/4") != std::string::npos);
  REQUIRE(run.result.out.find("[1]") == std::string::npos);  // Rank 1 says nothing.
}
