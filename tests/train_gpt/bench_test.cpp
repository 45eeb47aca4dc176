// scripts/bench end to end, on the smallest model.
#include "support/catch.h"
#include "train_gpt/runs.h"

using namespace convoy::testing;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> bench_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{CONVOY_TEST_SCRIPTS "/bench", "--programs",
                                   CONVOY_TEST_PROGRAMS};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

TEST_CASE("bench: runs all strategies, agrees, and writes what others read") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(60'000, 2));
  const std::string out = (scratch.path() / "out").native();
  const ProgramResult result = run_program(
      bench_command({"--model", "tiny", "--steps", "6", "--warmup", "1", "--ranks", "2", "--data",
                     data, "--out", out, "--", "--layers", "2", "--dim=32", "--seq", "32"}),
      500s);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_code == 0);
  const std::string last = "summary: " + out + "/summary.json\n";
  REQUIRE(result.out.ends_with(last));
  REQUIRE(result.out == read_whole(out + "/table.txt") + last);
  // The floor runs last, and nobody waits for it to see the others.
  const std::vector<std::string> told{
      "single took ", "s a step, ",     "ddp took ",   "so far, 2 of 4 strategies:\n",
      "vs single",    "so far, 3 of 4", "alone took ", " tokens/s\n"};
  std::size_t at = 0;
  for (const std::string& text : told) {
    CAPTURE(text);
    at = result.err.find(text, at);
    REQUIRE(at != std::string::npos);
  }
  REQUIRE(result.err.find("so far, 4") == std::string::npos);

  const Json summary = Json::parse(read_whole(out + "/summary.json"));
  for (const char* key : {"schema", "unix_time", "convoy", "libtorch", "machine", "config",
                          "parameters", "data", "runs", "agreement"}) {
    CAPTURE(key);
    REQUIRE(summary.contains(key));
    REQUIRE_FALSE(summary[key].is_null());
  }
  REQUIRE(summary["schema"] == 1);
  REQUIRE(summary["data"]["bytes"] == 60'000);
  REQUIRE(summary["machine"]["cores"].get<int>() >= 1);
  REQUIRE(summary["agreement"]["ddp_fsdp_bitwise"] == true);
  REQUIRE(summary["agreement"]["ok"] == true);
  REQUIRE(summary["agreement"]["single_max_rel_loss_diff"].get<double>() < 1e-3);
  std::vector<std::string> order;
  for (const Json& run : summary["runs"]) order.push_back(run["strategy"]);
  REQUIRE(order == std::vector<std::string>{"single", "alone", "ddp", "fsdp"});
  for (const Json& run : summary["runs"]) {
    for (const char* key :
         {"strategy", "ranks", "threads", "exit_code", "steps", "step_s", "tokens_per_s", "speedup",
          "efficiency", "exposed_s", "optimizer_s", "data_s", "comm", "overlap_share", "memory",
          "loss", "params_xxh3", "other_load"}) {
      CAPTURE(run.dump(), key);
      REQUIRE(run.contains(key));
    }
    const bool is_single = run["strategy"] == "single";
    REQUIRE(run["exit_code"] == 0);
    REQUIRE(run["steps"] == 6);
    REQUIRE(run["step_s"]["n"] == (run["strategy"] == "alone" ? 10 : 5));
    REQUIRE(run["ranks"] == (is_single ? 1 : 2));
    REQUIRE(run["memory"].size() == (is_single ? 1U : 2U));
    REQUIRE(run["loss"]["validation"].is_number());
    REQUIRE(std::filesystem::exists(out + "/" + run["strategy"].get<std::string>() + ".jsonl"));
    REQUIRE(std::filesystem::exists(out + "/" + run["strategy"].get<std::string>() + ".log"));
    const Json trace =
        Json::parse(read_whole(out + "/" + run["strategy"].get<std::string>() + ".trace.json"));
    REQUIRE(trace["traceEvents"].size() > 20);
    for (const char* part : {"compute_s", "wait_s", "optimizer_s", "data_s"}) {
      REQUIRE(run["split"][part].is_number());
    }
  }
  const std::string report = read_whole(out + "/report.html");
  REQUIRE(report.ends_with("</html>\n"));
  for (const char* text : {"Timeline of one step of alone", "Timeline of one step of fsdp",
                           "rank 1: all_reduce bucket 0", "2P(N-1)/N"}) {
    CAPTURE(text);
    REQUIRE(report.find(text) != std::string::npos);
  }
  REQUIRE(summary["runs"][0]["speedup"] == 1);
  REQUIRE(summary["runs"][1]["exposed_s"] == 0);
  REQUIRE(summary["runs"][2]["comm"]["all_reduce"]["payload_bytes"].get<double>() > 0);
  // A folder of one's own does not become the newest of the default ones.
  const auto latest = std::filesystem::path(CONVOY_TEST_SCRIPTS) / "../build/bench/latest";
  REQUIRE_FALSE((std::filesystem::exists(latest) && std::filesystem::equivalent(latest, out)));
}

TEST_CASE("bench: wrong usage is one line and exit code 2") {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
    const ProgramResult result = run_program(bench_command(arguments));
    INFO(result.err);
    REQUIRE(result.exit_code == 2);
    REQUIRE(result.out.empty());
    REQUIRE(result.err.find(text) != std::string::npos);
    REQUIRE(result.err.find('\n') == result.err.size() - 1);
  };
  refused({"--rank", "2"}, "did you mean '--ranks'?");
  refused({"--model", "smal"}, "did you mean 'small'?");
  refused({"--strategies", "ddp,fsd"}, "did you mean 'fsdp'?");
  refused({"--ranks", "0"}, "takes a whole number from 1");
  refused({"--steps", "3", "--warmup", "3"}, "leaves nothing to time");
  refused({"--", "--strategy", "ddp"}, "decided by the bench");
  refused({"--", "-h"}, "use train_gpt --help");
  refused({"--", "--save", "folder"}, "does not take --save: its runs would write over");
  refused({"--", "--save-every=2"}, "does not take --save-every: ");
  refused({"--", "--seed=3", "--resume=folder"}, "does not take --resume: ");
  refused({"--", "--global-batch", "5"}, "does not divide");
  refused({"--data", "/no/such/text"}, "'/no/such/text': no such file or folder");
}

TEST_CASE("bench: what train_gpt refuses ends the bench with one line and exit code 2") {
  const Scratch scratch;
  const std::string out = (scratch.path() / "out").native();
  const ProgramResult result =
      run_program(bench_command({"--model", "tiny", "--data", scratch.write("text.txt", "to be"),
                                 "--out", out}),
                  120s);
  INFO(result.err);
  REQUIRE(result.exit_code == 2);
  REQUIRE(result.out.empty());
  REQUIRE(result.err.find("the text is too small: it has 5 bytes") != std::string::npos);
  REQUIRE(result.err.find("ddp") == std::string::npos);
}

TEST_CASE("bench: a run that fails is shown, the others are still compared") {
  const Scratch scratch;
  const std::string out = (scratch.path() / "out").native();
  const std::string data = scratch.write("text.txt", make_text(30'000, 2));
  // A launcher that only fails, beside the real program.
  const std::string launcher = scratch.write(
      "programs/convoyrun", "#!/bin/sh\necho 'error: nothing to share' >&2\nexit 1\n");
  std::filesystem::permissions(launcher, std::filesystem::perms::owner_all);
  std::filesystem::create_symlink(CONVOY_TEST_TRAIN_GPT, scratch.path() / "programs/train_gpt");
  const ProgramResult result =
      run_program({CONVOY_TEST_SCRIPTS "/bench", "--programs",
                   (scratch.path() / "programs").native(), "--model", "tiny", "--steps", "2",
                   "--warmup", "0", "--strategies", "ddp,single", "--data", data, "--out", out},
                  240s);
  INFO(result.err);
  REQUIRE(result.exit_code == 1);
  REQUIRE(result.err.find("ddp failed with exit code 1: error: nothing to share") !=
          std::string::npos);
  REQUIRE(result.out.find("ddp FAILED with exit code 1: error: nothing to share") !=
          std::string::npos);
  const Json summary = Json::parse(read_whole(out + "/summary.json"));
  REQUIRE(summary["runs"][0]["exit_code"] == 1);
  REQUIRE(summary["runs"][0]["step_s"]["median"].is_null());
  REQUIRE(summary["runs"][1]["exit_code"] == 0);
  REQUIRE(summary["runs"][1]["step_s"]["median"].is_number());
}
