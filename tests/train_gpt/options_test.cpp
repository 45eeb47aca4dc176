// The command line of train_gpt: what is read, and how wrong input is refused.
#include "programs/train_gpt/options.h"

#include "convoy/base/error.h"
#include "programs/train_gpt/json_line.h"
#include "support/catch.h"

#include <nlohmann/json.hpp>

using namespace convoy::train_gpt;
using namespace std::chrono_literals;

namespace {

ParsedCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train_gpt");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal(std::vector<const char*> arguments) {
  try {
    parse(std::move(arguments));
  } catch (const convoy::Error& error) {
    REQUIRE(error.kind() == convoy::ErrorKind::kInvalidArgument);
    REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "it was accepted";
}

}  // namespace

TEST_CASE("options: defaults follow the model") {
  const Options options = parse({"--data", "x"}).options;
  REQUIRE(options.model == "small");
  REQUIRE(options.config.dim == 384);
  REQUIRE(options.micro_batch == 4);
  REQUIRE_FALSE(options.strategy);
  REQUIRE_FALSE(options.global_batch);
  REQUIRE(options.min_lr == Approx(options.lr / 10));
  REQUIRE(options.timeout == 600s);
  REQUIRE(options.clip == 1);
  REQUIRE(options.shared_gather);
  REQUIRE(options.reshard_after_forward);
  REQUIRE(parse({"--data", "x", "--model", "base"}).options.micro_batch == 1);
}

TEST_CASE("options: every flag, as --a v and as --a=v") {
  const Options options = parse({"--strategy=fsdp",
                                 "--model",
                                 "tiny",
                                 "--layers=3",
                                 "--dim",
                                 "96",
                                 "--heads=6",
                                 "--seq",
                                 "48",
                                 "--vocab=300",
                                 "--tie-embeddings",
                                 "--data=a,b",
                                 "--data",
                                 "c",
                                 "--global-batch=12",
                                 "--micro-batch",
                                 "3",
                                 "--steps=7",
                                 "--lr",
                                 "0.5",
                                 "--min-lr=1e-3",
                                 "--warmup-steps",
                                 "2",
                                 "--weight-decay=0",
                                 "--clip",
                                 "0",
                                 "--dtype=fp32",
                                 "--checkpoint",
                                 "--seed",
                                 "9",
                                 "--threads=2",
                                 "--bucket-mb",
                                 "0.25",
                                 "--no-reshard-after-forward",
                                 "--no-shared-gather",
                                 "--eval-every=3",
                                 "--eval-windows",
                                 "11",
                                 "--sample=5",
                                 "--prompt",
                                 "-x",
                                 "--json=out",
                                 "--timeout",
                                 "500ms"})
                              .options;
  REQUIRE(options.strategy == StrategyKind::kFsdp);
  REQUIRE(options.config.layers == 3);
  REQUIRE(options.config.dim == 96);
  REQUIRE(options.config.heads == 6);
  REQUIRE(options.config.seq == 48);
  REQUIRE(options.config.vocab == 300);
  REQUIRE(options.config.tie_embeddings);
  REQUIRE(options.data == std::vector<std::string>{"a,b", "c"});
  REQUIRE(options.global_batch == 12);
  REQUIRE(options.micro_batch == 3);
  REQUIRE(options.steps == 7);
  REQUIRE(options.lr == 0.5);
  REQUIRE(options.min_lr == 1e-3);
  REQUIRE(options.warmup_steps == 2);
  REQUIRE(options.weight_decay == 0);
  REQUIRE(options.clip == 0);
  REQUIRE(options.checkpoint);
  REQUIRE(options.seed == 9);
  REQUIRE(options.threads == 2);
  REQUIRE(options.bucket_mb == 0.25);
  REQUIRE_FALSE(options.reshard_after_forward);
  REQUIRE_FALSE(options.shared_gather);
  REQUIRE(options.eval_every == 3);
  REQUIRE(options.eval_windows == 11);
  REQUIRE(options.sample == 5);
  REQUIRE(options.prompt == "-x");
  REQUIRE(options.json == "out");
  REQUIRE(options.timeout == 500ms);
}

TEST_CASE("options: wrong input is one line with the nearest right one") {
  const std::string help = " (see --help)";
  REQUIRE(refusal({"--stpes", "5"}) ==
          "there is no flag '--stpes'; did you mean '--steps'?" + help);
  REQUIRE(
      refusal({"--data=x", "--strategy", "fdsp"}) ==
      "there is no strategy 'fdsp'; did you mean 'fsdp'?; there are single, ddp, zero1 and fsdp" +
          help);
  REQUIRE(refusal({"--data=x", "--model=bse"}).find("did you mean 'base'?") != std::string::npos);
  REQUIRE(refusal({"--data=x", "--steps=-1"}) ==
          "--steps takes a whole number from 0, got '-1'" + help);
  REQUIRE(refusal({"--data=x", "--steps", "1e3"}).find("got '1e3'") != std::string::npos);
  REQUIRE(refusal({"--data=x", "--lr", "fast"}) ==
          "--lr takes a number that is not negative, got 'fast'" + help);
  REQUIRE(refusal({"--data=x", "--lr", "-1"}).find("--lr takes") == 0);
  REQUIRE(refusal({"--data=x", "--dtype", "int8"}) ==
          "--dtype 'int8' is not available; it takes fp32 or bf16");
  REQUIRE(refusal({"--data=x", "--timeout", "soon"}).find("--timeout takes a time") == 0);
  REQUIRE(refusal({"--data=x", "--bucket-mb", "0"}).find("--bucket-mb") == 0);
  REQUIRE(refusal({"--data=x", "--min-lr", "1"}).find("--min-lr 1 is above --lr") == 0);
  REQUIRE(refusal({"--data=x", "--steps=3", "--warmup-steps=4"}).find("--warmup-steps 4") == 0);
  REQUIRE(refusal({"--data=x", "--prompt="}).find("--prompt") == 0);
  REQUIRE(refusal({}).find("give --data") != std::string::npos);
  REQUIRE(refusal({"--data=x", "more"}) == "unexpected argument 'more'" + help);
  REQUIRE(refusal({"--data"}) == "--data needs a value" + help);
  REQUIRE(refusal({"--data=x", "-steps", "5"}) ==
          "there is no flag '-steps'; did you mean '--steps'?" + help);
  REQUIRE(refusal({"--data=x", "-n", "5"}) == "there is no flag '-n'" + help);
  REQUIRE(refusal({"--data=x", "--no-shared-gather=maybe"}).find("true or false") !=
          std::string::npos);
  REQUIRE(refusal({"--data=x", "--saves", "y"}).find("did you mean '--save'") != std::string::npos);
}

TEST_CASE("options: a switch that is given as false is off") {
  REQUIRE(parse({"--data=x", "--no-shared-gather=false"}).options.shared_gather);
  REQUIRE(parse({"--data=x", "--no-reshard-after-forward=false"}).options.reshard_after_forward);
  REQUIRE_FALSE(parse({"--data=x", "--tie-embeddings=false"}).options.config.tie_embeddings);
  REQUIRE(parse({"--data=x", "--tie-embeddings=true"}).options.config.tie_embeddings);
  REQUIRE(parse({"--data=x", "--model=gpt2-124m"}).options.config.tie_embeddings);
  REQUIRE_FALSE(parse({"--data=x", "--model=gpt2-124m", "--tie-embeddings=false"})
                    .options.config.tie_embeddings);
}

TEST_CASE("options: flags that a strategy does not look at are known by name") {
  const auto unused = [](std::vector<const char*> arguments, StrategyKind strategy) {
    arguments.insert(arguments.begin(), "--data=x");
    return flags_without_effect(parse(arguments).options, strategy);
  };
  using Flags = std::vector<std::string>;
  const std::vector<const char*> all{"--bucket-mb=2", "--no-reshard-after-forward",
                                     "--no-shared-gather"};
  REQUIRE(unused(all, StrategyKind::kSingle) ==
          Flags{"--bucket-mb", "--no-reshard-after-forward", "--no-shared-gather"});
  for (const auto strategy : {StrategyKind::kDdp, StrategyKind::kZero1}) {
    REQUIRE(unused(all, strategy) == Flags{"--no-reshard-after-forward", "--no-shared-gather"});
  }
  REQUIRE(unused(all, StrategyKind::kFsdp) == Flags{"--bucket-mb"});
  REQUIRE(unused({"--no-shared-gather=false"}, StrategyKind::kDdp).empty());
  REQUIRE(unused({"--no-reshard-after-forward"}, StrategyKind::kFsdp) ==
          Flags{"--no-reshard-after-forward without --no-shared-gather"});
  REQUIRE(
      unused({"--no-reshard-after-forward", "--no-shared-gather"}, StrategyKind::kFsdp).empty());
}

TEST_CASE("options: sizes that no machine holds are refused before anything is made") {
  for (const char* flag : {"--layers", "--dim", "--seq", "--vocab"}) {
    CAPTURE(flag);
    const std::string text = refusal({"--data=x", "--heads=1", flag, "1099511627776"});
    REQUIRE(text.find(std::string(flag) + " 1099511627776") != std::string::npos);
    REQUIRE(text.find("which no machine holds") != std::string::npos);
  }
}

TEST_CASE("options: help names every flag, version says which build") {
  const std::string help = parse({"--help"}).text.value();
  for (const char* flag : {"--data", "--model", "--strategy", "--micro-batch", "--json",
                           "--no-shared-gather", "--eval-windows", "--prompt", "--checkpoint"}) {
    CAPTURE(flag);
    REQUIRE(help.find(flag) != std::string::npos);
  }
  REQUIRE(parse({"-h"}).text.value() == help);
  REQUIRE(parse({"--version"}).text.value().find("train_gpt 0.") == 0);
}

TEST_CASE("json: numbers are the shortest text that reads back") {
  REQUIRE(shortest(0.1F) == "0.1");
  REQUIRE(shortest(5.5451774F) == "5.5451775");
  REQUIRE(shortest(1.0 / 3) == "0.3333333333333333");
  REQUIRE(shortest(std::numeric_limits<float>::infinity()) == "null");
  REQUIRE(shortest(std::numeric_limits<double>::quiet_NaN()) == "null");
  for (const float value : {2.6412323F, 1e-30F, 3.0F, 16777216.0F}) {
    REQUIRE(std::stof(shortest(value)) == value);
  }
  JsonLine inner;
  inner.add("x", std::optional<double>{});
  JsonLine line;
  line.add("text", "a \"b\" \n \xff").add("n", 3).add("yes", true).add("inner", inner);
  const auto read = nlohmann::json::parse(line.text());
  REQUIRE(read["text"] == "a \"b\" \n \xEF\xBF\xBD");
  REQUIRE(read["n"] == 3);
  REQUIRE(read["yes"] == true);
  REQUIRE(read["inner"]["x"].is_null());
  REQUIRE(line.text().find('\n') == std::string::npos);
}
