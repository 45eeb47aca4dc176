// Reads the command line: every value checked, every error one line that says what would be right.
#include "programs/train_gpt/options.h"

#define CXXOPTS_VECTOR_DELIMITER '\0'  // A path may hold a comma.
#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/base/suggest.h"
#include "convoy/version.h"

#include <cxxopts.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace convoy::train_gpt {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1}
                                   << 40;  // Far above anything that fits a machine.

cxxopts::Options make_parser() {
  cxxopts::Options parser(
      "train_gpt",
      "Trains a GPT on the bytes of your own files, on one process or data-parallel.\n"
      "  train_gpt --data shakespeare.txt\n"
      "  convoyrun -n 2 train_gpt --strategy fsdp --data notes/ --data book.txt --steps 500\n");
  parser.custom_help("[flags]").set_width(100).allow_unrecognised_options();
  const auto text = [] { return cxxopts::value<std::string>(); };
  parser.add_options("Data")("data", "File or folder with text of any kind; may be repeated",
                             cxxopts::value<std::vector<std::string>>(), "PATH")(
      "eval-windows",
      "Windows held out for validation, spread over the text; at most a tenth of it",
      text()->default_value("128"), "N");
  parser.add_options("Model")("model", "tiny, small, base or gpt2-124m",
                              text()->default_value("small"),
                              "NAME")("layers", "Blocks", text(), "N")("dim", "Width", text(), "N")(
      "heads", "Attention heads", text(), "N")("seq", "Tokens of context", text(), "N")(
      "vocab", "Token ids, at least 256", text(), "N")("tie-embeddings",
                                                       "The head uses the token embedding");
  parser.add_options("Training")("steps", "Optimizer steps of the whole training",
                                 text()->default_value("200"), "N")(
      "global-batch", "Windows in one step, over all ranks (default: micro-batch x ranks)", text(),
      "N")("micro-batch", "Windows of one rank in one forward (default: by model)", text(), "N")(
      "lr", "Highest learning rate (default: by model)", text(), "X")(
      "min-lr", "Learning rate at the end (default: a tenth of --lr)", text(), "X")(
      "warmup-steps", "Steps of rising learning rate (default: a tenth, at most 100)", text(), "N")(
      "weight-decay", "On matrices; none on biases and norms", text()->default_value("0.1"), "X")(
      "clip", "Largest gradient norm; 0 turns clipping off", text()->default_value("1"), "X")(
      "dtype", "fp32, or bf16: computes in bfloat16 over float32 weights and gradients",
      text()->default_value("fp32"), "TYPE")(
      "checkpoint", "Save memory: run each block again in backward and keep no activations")(
      "seed", "Of the first weights, the order of the text and the sample",
      text()->default_value("1"), "N");
  parser.add_options("Strategy")(
      "strategy", "single, ddp, zero1 or fsdp (default: single alone, ddp with several ranks)",
      text(), "NAME")("threads", "Threads of one rank", text(), "N")(
      "bucket-mb", "ddp, zero1: MiB of gradients reduced together", text(), "X")(
      "no-reshard-after-forward", "fsdp: keep parameters gathered until backward")(
      "no-shared-gather", "fsdp: gather into private memory, also where ranks share memory")(
      "timeout", "Longest wait for another rank: 30, 500ms, 10m", text()->default_value("600"),
      "TIME");
  parser.add_options("Output")("eval-every", "Validate every N steps; 0: only at the end",
                               text()->default_value("0"), "N")(
      "sample", "Bytes of text to write at the end", text()->default_value("200"), "N")(
      "prompt", "How that text begins (default: a new line)", text(), "TEXT")(
      "json", "Write one JSON object a line: start, step, eval, end", text(), "FILE")(
      "trace", "Write a timeline of all ranks for Perfetto or chrome://tracing", text(), "PATH")(
      "save", "Write checkpoints to DIR/step_00000100 and so on; at the end always", text(), "DIR")(
      "save-every", "Also every N steps", text(), "N")(
      "resume", "Go on from the latest checkpoint of a folder, or from one step folder", text(),
      "DIR")("h,help", "Print this")("version", "Print the version");
  return parser;
}

std::vector<std::string> flag_names(const cxxopts::Options& parser) {
  std::vector<std::string> names;
  for (const std::string& group : parser.groups()) {
    for (const auto& flag : parser.group_help(group).options) {
      for (const std::string& name : flag.l) names.push_back("--" + name);
    }
  }
  return names;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kInvalidArgument, message + " (see --help)");
}

/// What was typed where the parser found a flag of one letter: '-s' can come from '-steps'.
std::string as_typed(const std::string& found, std::span<const char* const> words) {
  if (found.size() != 2) return found;
  const auto typed = std::find_if(words.begin(), words.end(), [&](std::string_view word) {
    return word.starts_with(found) && word.find('-', 1) != 1;
  });
  return typed == words.end() ? found : *typed;
}

void refuse_unknown(const cxxopts::Options& parser, const std::vector<std::string>& unmatched,
                    std::span<const char* const> words) {
  for (const std::string& argument : unmatched) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string typed = as_typed(argument, words);
    const std::string flag = typed.substr(0, typed.find('='));
    refuse(concat("there is no flag '", flag, "'", did_you_mean(flag, flag_names(parser))));
  }
  if (!unmatched.empty()) refuse(concat("unexpected argument '", unmatched.front(), "'"));
}

/// Reads typed values of flags from what cxxopts found.
class Values {
 public:
  explicit Values(const cxxopts::ParseResult& result) : result_(result) {}

  bool has(const std::string& flag) const { return result_.count(flag) > 0; }
  bool is_on(const std::string& flag) const { return has(flag) && result_[flag].as<bool>(); }
  std::string text(const std::string& flag) const { return result_[flag].as<std::string>(); }

  std::int64_t whole(const std::string& flag, std::int64_t min,
                     std::int64_t max = kMaxCount) const {
    const auto value = parse_int(text(flag), min, max);
    if (value) return *value;
    refuse(concat("--", flag, " takes a whole number from ", min,
                  max == kMaxCount ? "" : concat(" to ", max), ", got '", text(flag), "'"));
  }
  std::int64_t whole_or(const std::string& flag, std::int64_t min, std::int64_t fallback) const {
    return has(flag) ? whole(flag, min) : fallback;
  }

  double real(const std::string& flag) const {
    const auto value = parse_double(text(flag));
    if (value && *value >= 0) return *value;
    refuse(concat("--", flag, " takes a number that is not negative, got '", text(flag), "'"));
  }
  double real_or(const std::string& flag, double fallback) const {
    return has(flag) ? real(flag) : fallback;
  }

 private:
  const cxxopts::ParseResult& result_;
};

void read_model(const Values& values, Options& options) {
  options.model = values.text("model");
  const NamedModel& model = named_model(options.model);
  ModelConfig& config = options.config = model.config;
  config.layers = values.whole_or("layers", 1, config.layers);
  config.dim = values.whole_or("dim", 1, config.dim);
  config.heads = values.whole_or("heads", 1, config.heads);
  config.seq = values.whole_or("seq", 1, config.seq);
  config.vocab = values.whole_or("vocab", 1, config.vocab);
  if (values.has("tie-embeddings")) config.tie_embeddings = values.is_on("tie-embeddings");
  check_model(config);
  options.micro_batch = values.whole_or("micro-batch", 1, model.micro_batch);
  options.lr = values.real_or("lr", model.lr);
}

void read_training(const Values& values, Options& options) {
  options.steps = values.whole("steps", 0);
  if (values.has("global-batch")) options.global_batch = values.whole("global-batch", 1);
  options.min_lr = values.real_or("min-lr", options.lr / 10);
  CONVOY_REQUIRE(options.min_lr <= options.lr, kInvalidArgument, "--min-lr ", options.min_lr,
                 " is above --lr ", options.lr);
  options.warmup_steps =
      values.whole_or("warmup-steps", 0, std::min<std::int64_t>(100, (options.steps + 9) / 10));
  CONVOY_REQUIRE(options.warmup_steps <= options.steps, kInvalidArgument, "--warmup-steps ",
                 options.warmup_steps, " are more than --steps ", options.steps);
  options.weight_decay = values.real("weight-decay");
  options.clip = values.real("clip");
  options.seed =
      static_cast<std::uint64_t>(values.whole("seed", 0, std::numeric_limits<std::int64_t>::max()));
  options.config.dtype = parse_dtype(values.text("dtype"));
  options.checkpoint = values.is_on("checkpoint");
}

void read_strategy(const Values& values, Options& options) {
  if (values.has("strategy")) {
    const std::string name = values.text("strategy");
    for (const auto kind :
         {StrategyKind::kSingle, StrategyKind::kDdp, StrategyKind::kZero1, StrategyKind::kFsdp}) {
      if (name == to_string(kind)) options.strategy = kind;
    }
    const std::vector<std::string> names{"single", "ddp", "zero1", "fsdp"};
    if (!options.strategy) {
      refuse(concat("there is no strategy '", name, "'", did_you_mean(name, names),
                    "; there are single, ddp, zero1 and fsdp"));
    }
  }
  if (values.has("threads")) options.threads = static_cast<int>(values.whole("threads", 1, 4096));
  if (values.has("bucket-mb")) {
    options.bucket_mb = values.real("bucket-mb");
    if (*options.bucket_mb == 0) refuse("--bucket-mb takes a number above 0, got '0'");
  }
  options.reshard_after_forward = !values.is_on("no-reshard-after-forward");
  options.shared_gather = !values.is_on("no-shared-gather");
  const auto timeout = parse_duration(values.text("timeout"));
  if (!timeout || timeout->count() == 0) {
    refuse(concat("--timeout takes a time such as 30, 500ms or 10m, got '", values.text("timeout"),
                  "'"));
  }
  options.timeout = *timeout;
}

void read_output(const Values& values, Options& options) {
  options.eval_every = values.whole("eval-every", 0);
  options.eval_windows = values.whole("eval-windows", 1);
  options.sample = values.whole("sample", 0);
  options.prompt = values.has("prompt") ? values.text("prompt") : "\n";
  if (options.prompt.empty()) refuse("--prompt must not be empty");
  if (values.has("json")) {
    options.json = values.text("json");
    if (options.json.empty()) refuse("--json takes the name of a file");
  }
  if (values.has("trace")) {
    options.trace = values.text("trace");
    if (options.trace.empty()) refuse("--trace takes the name of a file or folder");
  }
}

void read_checkpoints(const Values& values, Options& options) {
  const auto folder = [&](const char* flag) {
    if (!values.has(flag)) return std::string();
    std::string path = values.text(flag);
    if (path.empty()) refuse(concat("--", flag, " takes the name of a folder"));
    return path;
  };
  options.save = folder("save");
  options.resume = folder("resume");
  options.save_every = values.whole_or("save-every", 1, 0);
  if (options.save_every > 0 && options.save.empty()) {
    refuse("--save-every says when to save, but not where: give --save DIR too");
  }
}

}  // namespace

std::string_view to_string(StrategyKind kind) noexcept {
  switch (kind) {
    case StrategyKind::kSingle: return "single";
    case StrategyKind::kDdp: return "ddp";
    case StrategyKind::kZero1: return "zero1";
    case StrategyKind::kFsdp: return "fsdp";
  }
  return "unknown";
}

std::vector<std::string> flags_without_effect(const Options& options, StrategyKind strategy) {
  const bool has_buckets = strategy == StrategyKind::kDdp || strategy == StrategyKind::kZero1;
  const bool has_gathers = strategy == StrategyKind::kFsdp;
  std::vector<std::string> flags;
  if (options.bucket_mb && !has_buckets) flags.emplace_back("--bucket-mb");
  if (!options.reshard_after_forward && !has_gathers) {
    flags.emplace_back("--no-reshard-after-forward");
  } else if (!options.reshard_after_forward && options.shared_gather) {
    flags.emplace_back("--no-reshard-after-forward without --no-shared-gather");
  }
  if (!options.shared_gather && !has_gathers) flags.emplace_back("--no-shared-gather");
  return flags;
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  cxxopts::Options parser = make_parser();
  const std::span words(argv, static_cast<std::size_t>(argc));
  try {
    const cxxopts::ParseResult result = parser.parse(argc, argv);
    refuse_unknown(parser, result.unmatched(), words);
    if (result.count("help") > 0)
      return {parser.help({"Data", "Model", "Training", "Strategy", "Output"}), {}};
    if (result.count("version") > 0) {
      const BuildInfo build = build_info();
      return {
          concat("train_gpt ", build.version, " (", build.commit, ", ", build.build_type, ")\n"),
          {}};
    }
    Options options;
    const Values values(result);
    read_model(values, options);
    read_training(values, options);
    read_strategy(values, options);
    read_output(values, options);
    read_checkpoints(values, options);
    if (!values.has("data")) refuse("nothing to train on: give --data with a file or a folder");
    options.data = result["data"].as<std::vector<std::string>>();
    return {std::nullopt, std::move(options)};
  } catch (const cxxopts::exceptions::missing_argument&) {
    refuse(concat(words.back(), " needs a value"));  // Only behind the last word there is none.
  } catch (const cxxopts::exceptions::incorrect_argument_type& error) {
    refuse(concat("a switch takes no value, or true or false: ", error.what()));
  } catch (const cxxopts::exceptions::exception& error) {
    refuse(error.what());
  }
}

}  // namespace convoy::train_gpt
