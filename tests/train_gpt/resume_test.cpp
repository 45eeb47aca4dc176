// train_gpt saves and goes on: in the same bits, in other strategies and worlds, or not at all.
#include "support/catch.h"
#include "train_gpt/runs.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace convoy::testing;

namespace {

namespace fs = std::filesystem;

/// The flags of one training, saved to a folder of its own.
class SavedTraining {
 public:
  SavedTraining() : data_(scratch_.write("text.txt", make_text(40'000, 1))) {}

  const Scratch& scratch() const { return scratch_; }
  const std::string& data() const { return data_; }
  fs::path folder(const std::string& name = "saved") const { return scratch_.path() / name; }

  TrainRun run(int world, std::vector<std::string> flags, bool succeeds = true) const {
    flags.insert(flags.begin(), {"--data", data_, "--global-batch=12", "--micro-batch=2"});
    TrainRun result = train(scratch_, world, flags);
    INFO(result.result.err);
    if (succeeds) REQUIRE(result.result.exit_code == 0);
    return result;
  }

 private:
  Scratch scratch_;
  std::string data_;
};

std::vector<std::string> last(std::vector<std::string> texts, std::size_t count) {
  REQUIRE(texts.size() >= count);
  return {texts.end() - static_cast<std::ptrdiff_t>(count), texts.end()};
}

void require_refused_line(const TrainRun& run, const std::string& part, int code = 2) {
  INFO(run.result.err);
  REQUIRE(run.result.exit_code == code);
  REQUIRE(run.result.err.find(part) != std::string::npos);
  const std::size_t block = run.result.err.find("convoyrun: first failure");
  const std::string lines = run.result.err.substr(0, block);
  REQUIRE(lines.find("error:") == lines.rfind("error:"));
}

}  // namespace

TEST_CASE("resume: the next 20 losses have the same bits in every strategy of the same world") {
  const SavedTraining training;
  const std::string saved = training.folder();
  const TrainRun unbroken = training.run(
      2, {"--strategy=ddp", "--steps=24", "--save", saved, "--save-every=4", "--eval-every=9"});
  std::vector<std::string> paths;
  for (const Json& event : unbroken.of("save")) paths.push_back(event.at("path"));
  REQUIRE(paths.size() == 6);
  REQUIRE(paths[0] == saved + "/step_00000004");
  REQUIRE(read_whole(training.folder() / "latest") == "step_00000024\n");
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--strategy=ddp"}, {"--strategy=fsdp"}, {"--strategy=fsdp", "--no-shared-gather"}}) {
    auto all = flags;
    all.insert(all.end(), {"--steps=24", "--resume", paths[0]});
    const TrainRun resumed = training.run(2, all);
    REQUIRE(resumed.of("step").front().at("step") == 5);
    REQUIRE(resumed.loss_texts() == last(unbroken.loss_texts(), 20));
    REQUIRE(resumed.of("step").front().at("lr") == unbroken.of("step").at(4).at("lr"));
    REQUIRE(resumed.events.back().at("params_xxh3") == unbroken.events.back().at("params_xxh3"));
  }
}

TEST_CASE("resume: from fsdp into one process and three ranks to 1e-5 and from one process") {
  const SavedTraining training;
  const std::string saved = training.folder();
  const TrainRun unbroken =
      training.run(2, {"--strategy=fsdp", "--steps=24", "--save", saved, "--save-every=4"});
  const auto expected = unbroken.of("step");
  const auto check_near = [&](int world, const std::vector<std::string>& flags) {
    auto all = flags;
    all.insert(all.end(), {"--steps=24", "--resume", saved + "/step_00000004"});
    const auto steps = training.run(world, all).of("step");
    REQUIRE(steps.size() == 20);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      REQUIRE(steps[i].at("loss").get<double>() ==
              Approx(expected[i + 4].at("loss").get<double>()).epsilon(1e-5));
    }
  };
  check_near(1, {"--strategy=single"});
  check_near(3, {"--strategy=fsdp", "--no-shared-gather"});
  // One process as single, ddp and fsdp: the same bits.
  const std::string alone = training.folder("alone");
  const TrainRun single = training.run(1, {"--steps=8", "--save", alone, "--save-every=4"});
  for (const char* strategy : {"--strategy=ddp", "--strategy=fsdp"}) {
    const TrainRun resumed =
        training.run(1, {strategy, "--steps=8", "--resume", alone + "/step_00000004"});
    REQUIRE(resumed.loss_texts() == last(single.loss_texts(), 4));
  }
}

TEST_CASE("resume: steps is the number of all steps and a finished training only validates") {
  const SavedTraining training;
  const std::string saved = training.folder();
  const TrainRun first = training.run(1, {"--steps=2", "--warmup-steps=1", "--save", saved});
  REQUIRE(first.of("save").size() == 1);  // At the end, without --save-every.
  const auto written = fs::last_write_time(training.folder() / "step_00000002/train_state.json");
  const TrainRun same =
      training.run(1, {"--steps=2", "--warmup-steps=1", "--save", saved, "--resume", saved});
  REQUIRE(same.of("step").empty());
  REQUIRE(same.events.back().at("loss") == first.events.back().at("loss"));
  REQUIRE(same.events.back().at("params_xxh3") == first.events.back().at("params_xxh3"));
  REQUIRE(same.of("save").empty());
  const TrainRun again = training.run(
      1, {"--steps=2", "--warmup-steps=1", "--save", saved, "--resume", saved + "/step_00000002"});
  REQUIRE(again.of("save").empty());
  REQUIRE(fs::last_write_time(training.folder() / "step_00000002/train_state.json") == written);
  const TrainRun copied = training.run(
      1, {"--steps=2", "--warmup-steps=1", "--save", training.folder("other"), "--resume", saved});
  REQUIRE(copied.of("save").size() == 1);  // Another folder gets its checkpoint.
  const TrainRun more = training.run(1, {"--steps=4", "--save", saved, "--resume", saved});
  REQUIRE(more.of("step").size() == 2);
  REQUIRE(read_whole(training.folder() / "latest") == "step_00000004\n");
  const Json state = Json::parse(read_whole(training.folder() / "step_00000004/train_state.json"));
  REQUIRE(state.at("step") == 4);
  REQUIRE(state.at("next_window") == 4 * 12);
  require_refused_line(training.run(1, {"--steps=3", "--resume", saved}, false),
                       "is at step 4 already");
}

TEST_CASE("C092: a step that a save was replacing when it died is resumed from and comes back") {
  const SavedTraining training;
  const std::string saved = training.folder();
  const TrainRun first = training.run(1, {"--steps=2", "--warmup-steps=1", "--save", saved});
  const fs::path step = training.folder() / "step_00000002";
  fs::rename(step, training.folder() / ".step_00000002.replaced");
  fs::create_directories(training.folder() / ".step_00000002.partial");
  const std::vector<std::string> finished{"--steps=2", "--warmup-steps=1", "--resume", saved};
  const auto hash = [](const TrainRun& run) { return run.events.back().at("params_xxh3"); };
  REQUIRE(hash(training.run(1, finished)) == hash(first));  // Without --save nothing is changed.
  REQUIRE_FALSE(fs::exists(step));
  auto saving = finished;
  saving.insert(saving.end(), {"--save", saved});
  REQUIRE(hash(training.run(1, saving)) == hash(first));
  REQUIRE(fs::exists(step / "model.safetensors"));
  REQUIRE_FALSE(fs::exists(training.folder() / ".step_00000002.replaced"));
  REQUIRE_FALSE(fs::exists(training.folder() / ".step_00000002.partial"));
}

TEST_CASE("save: no steps write the first weights, which every strategy begins with") {
  const SavedTraining training;
  const std::string first = training.folder("first");
  const TrainRun none = training.run(1, {"--steps=0", "--save", first});
  REQUIRE(none.of("step").empty());
  REQUIRE(none.of("save").at(0).at("path") == first + "/step_00000000");
  REQUIRE(none.events.back().at("loss").is_null());
  REQUIRE(fs::exists(first + "/step_00000000/model.safetensors"));
  const TrainRun from_seed = training.run(1, {"--steps=3"});
  const TrainRun from_file = training.run(1, {"--steps=3", "--resume", first});
  REQUIRE(from_file.loss_texts() == from_seed.loss_texts());
  const TrainRun ranks =
      training.run(2, {"--strategy=fsdp", "--steps=0", "--save", training.folder("ranks")});
  REQUIRE(read_whole(training.folder("ranks") / "step_00000000/model.safetensors") ==
          read_whole(first + "/step_00000000/model.safetensors"));
}

TEST_CASE("resume: another training is one line and exit 2 at several ranks too") {
  const SavedTraining training;
  const std::string saved = training.folder();
  training.run(1, {"--steps=1", "--save", saved});
  const auto refuse = [&](int world, std::vector<std::string> flags, const std::string& part) {
    CAPTURE(part);
    require_refused_line(training.run(world, std::move(flags), false), part);
  };
  refuse(1, {"--resume", saved, "--layers=3"}, "another training: --layers is 3 here and 2 there");
  refuse(2, {"--resume", saved, "--seed=9"}, "another training: --seed is 9 here and 1 there");
  refuse(1, {"--resume", saved, "--global-batch=8"}, "--global-batch is 8 here and 12 there");
  const std::string other = training.scratch().write("other.txt", make_text(40'000, 2));
  refuse(1, {"--resume", saved, "--data", other}, "--data is another text");
  const fs::path begun = training.folder() / ".step_00000002.partial";
  fs::create_directories(begun);
  refuse(2, {"--save", saved, "--seed=9"}, "has checkpoints of another training (--seed is 9");
  REQUIRE(fs::exists(begun));  // What the other training may be writing is left alone.
  refuse(1, {"--resume", training.folder("none")}, "there is no folder of checkpoints");
  refuse(1, {"--resume", training.scratch().path()}, "there is no checkpoint in");
  refuse(1, {"--save", training.data()}, "--save");
  refuse(1, {"--save-every=2"}, "give --save DIR too");
  fs::resize_file(training.folder() / "step_00000001/optimizer.safetensors", 1000);
  refuse(2, {"--resume", saved}, "optimizer.safetensors': ");
  fs::remove(training.folder() / "step_00000001/model.safetensors");
  refuse(1, {"--resume", saved}, "model.safetensors': No such file");
  training.scratch().write("saved/step_00000001/train_state.json", "{}");
  refuse(1, {"--resume", saved}, "train_state.json': it has no whole number 'schema'");
}

TEST_CASE("C094: train_gpt on a full disk ends with one line and keeps what it has") {
  const SavedTraining training;
  const std::string saved = training.folder();
  training.run(1, {"--steps=1", "--save", saved});
  // The limit of the size of a file stands for a full disk: the model has more bytes than it.
  const std::string command =
      "ulimit -f 60; exec " CONVOY_TEST_TRAIN_GPT
      " --model tiny --layers 2 --dim 32 --heads 2 --seq 32 --threads 1 --sample 0"
      " --eval-windows 12 --global-batch 12 --micro-batch 2 --steps 2 --data " +
      training.data() + " --save " + saved + " --resume " + saved;
  const ProgramResult result = run_program({"bash", "-c", command});
  INFO(result.err);
  REQUIRE(result.exit_code == 1);
  REQUIRE(result.err.find("File too large") != std::string::npos);
  REQUIRE(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  REQUIRE(read_whole(training.folder() / "latest") == "step_00000001\n");
  REQUIRE_FALSE(fs::exists(training.folder() / ".step_00000002.partial"));
  training.run(1, {"--steps=2", "--resume", saved});
}

TEST_CASE("C092: killed at any moment of saving, the latest checkpoint is a whole one") {
  const SavedTraining training;
  const std::string saved = training.folder();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> words{CONVOY_TEST_TRAIN_GPT,
                                   "--model",
                                   "tiny",
                                   "--layers=2",
                                   "--dim=32",
                                   "--heads=2",
                                   "--seq=32",
                                   "--threads=1",
                                   "--sample=0",
                                   "--eval-windows=12",
                                   "--global-batch=12",
                                   "--micro-batch=12",
                                   "--steps=100000",
                                   "--warmup-steps=1",
                                   "--data",
                                   training.data(),
                                   "--save",
                                   saved,
                                   "--save-every=1"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    REQUIRE(::posix_spawn(&child, arguments[0], &files, nullptr, arguments.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&files);
    fs::remove(training.folder() / "latest");
    for (int i = 0; i < 1000 && !fs::exists(training.folder() / "latest"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(5400 * round + 900));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string latest = read_whole(training.folder() / "latest");
    const std::string step = std::to_string(std::stoll(latest.substr(5)));
    CAPTURE(round, latest);
    const TrainRun loaded = training.run(1, {"--steps", step, "--resume", saved, "--save", saved});
    REQUIRE(loaded.of("step").empty());
  }
  for (const auto& entry : fs::directory_iterator(training.folder())) {
    REQUIRE(entry.path().filename().native().rfind(".step_", 0) == std::string::npos);
  }
}
