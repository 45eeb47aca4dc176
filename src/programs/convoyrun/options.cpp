// Reads the command line with cxxopts, once the program's own arguments are split off.
#include "programs/convoyrun/options.h"

#include "convoy/base/check.h"
#include "convoy/base/parse.h"
#include "convoy/base/suggest.h"

// cxxopts would build regular expressions at every start, which costs more than starting a rank.
#define CXXOPTS_NO_REGEX true
#include <cxxopts.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace convoy::launcher {

namespace {

constexpr int kMaxRanks = 4096;

struct Flag {
  std::string_view group;
  char letter;  // 0 for none
  std::string_view name;
  std::string_view value;  // as shown in the help; empty for a switch
  std::string_view meaning;
};

constexpr std::array kFlags{
    Flag{"Job", 'n', "nproc-per-node", "N|auto",
         "Ranks to start; auto means one for each usable core (default: 1)"},
    Flag{"Job", 0, "standalone", "", "One host, with nothing to set up; this is the default"},
    Flag{"Job", 0, "bind-to", "none|core",
         "core: rank R runs on usable core R modulo their number (default: none)"},
    Flag{"Job", 0, "master-port", "PORT",
         "MASTER_PORT for programs that want one; 0 takes a free one (default: 0)"},
    Flag{"Job", 0, "no-python", "",
         "Start a *.py program as it is, not with ${PYTHON_EXEC:-python3} -u"},

    Flag{"Output", 0, "log-dir", "DIR",
         "Keep the ranks' output in DIR/<run id>/attempt_0/<local rank>/{stdout,stderr}.log; with "
         "neither --tee nor --redirects both streams are kept and shown"},
    Flag{"Output", 't', "tee", "0-3|R:0-3,...",
         "Streams to keep and show: 1 stdout, 2 stderr, 3 both; for all ranks, or as 0:3,2:1"},
    Flag{"Output", 'r', "redirects", "0-3|R:0-3,...",
         "Streams to keep and not show; the same values"},
    Flag{"Output", 0, "report", "FILE", "Write a JSON report of the run to FILE when it has ended"},
    Flag{"Output", 'q', "quiet", "", "Of convoyrun's own lines show only warnings and failures"},

    Flag{"Stopping", 0, "shutdown-timeout", "TIME",
         "From the signal to stop until SIGKILL: 30, 500ms, 10m (default: 30s)"},

    Flag{"Help", 'h', "help", "", "Show this text"},
    Flag{"Help", 0, "version", "", "Show the version"},
};

const Flag* find_flag(std::string_view name) {
  const auto found = std::find_if(kFlags.begin(), kFlags.end(), [&](const Flag& flag) {
    return name == flag.name || (name.size() == 1 && name[0] == flag.letter);
  });
  return found == kFlags.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_flag(const std::string& flag) {
  std::vector<std::string> names;
  names.reserve(kFlags.size());
  for (const Flag& known : kFlags) names.push_back(concat("--", known.name));
  throw UsageError(concat("unknown flag '", flag, "'", did_you_mean(flag, names),
                          " (convoyrun's flags stand before the program; see --help)"));
}

// The arguments, divided into those for convoyrun, in one spelling, and those for the program.
struct Split {
  std::vector<std::string> own{"convoyrun"};
  std::vector<std::string> program;
};

Split split_arguments(std::span<const std::string> arguments) {
  Split split;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const bool is_long = word[1] == '-';
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    std::string name = is_long ? word.substr(2, equals - 2) : word.substr(1, 1);
    std::replace(name.begin(), name.end(), '_', '-');
    const Flag* flag = is_long && name.size() == 1 ? nullptr : find_flag(name);
    if (flag == nullptr) refuse_flag(is_long ? word.substr(0, equals) : word);

    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    if (!is_long && word.size() > 2) value = word.substr(word[2] == '=' ? 3 : 2);
    if (flag->value.empty()) {
      if (value)
        throw UsageError(concat("--", flag->name, " takes no value, but got '", *value, "'"));
      split.own.push_back(concat("--", flag->name));
      continue;
    }
    if (!value) {
      if (++i == arguments.size()) {
        throw UsageError(concat("--", flag->name, " needs a value: ", flag->value));
      }
      value = arguments[i];
    }
    split.own.push_back(concat("--", flag->name, "=", *value));
  }
  split.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return split;
}

cxxopts::Options describe_flags() {
  cxxopts::Options description(
      "convoyrun",
      "Starts the ranks of a job on this host, shows their output, and ends them all when one "
      "fails.\n");
  description.custom_help("[FLAGS] [--] PROGRAM [ARGUMENTS...]").set_width(100);
  for (const Flag& flag : kFlags) {
    std::string names = flag.letter == 0 ? "" : concat(flag.letter, ",");
    names += flag.name;
    const std::string meaning(flag.meaning);
    auto add = description.add_options(std::string(flag.group));
    if (flag.value.empty()) {
      add(names, meaning);
    } else {
      add(names, meaning, cxxopts::value<std::string>(), std::string(flag.value));
    }
  }
  return description;
}

// Reads the flags' values into Options.
class ValueReader {
 public:
  explicit ValueReader(const cxxopts::ParseResult& flags) : flags_(flags) {}

  bool is_set(const std::string& name) const { return flags_.count(name) > 0; }

  std::string text(const std::string& name) const {
    if (!is_set(name)) return "";
    auto value = flags_[name].as<std::string>();
    if (value.empty()) throw UsageError(concat("--", name, " is empty"));
    return value;
  }

  int number(const std::string& name, int fallback, int min, int max) const {
    if (!is_set(name)) return fallback;
    const auto value = parse_int(text(name), min, max);
    if (!value) refuse(name, concat("a number from ", min, " to ", max));
    return static_cast<int>(*value);
  }

  StreamChoice streams(const std::string& name) const {
    if (!is_set(name)) return {};
    const auto choice = StreamChoice::parse(text(name));
    if (!choice) refuse(name, "0, 1, 2 or 3, or local ranks with them as in 0:3,1:2");
    return *choice;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& right) const {
    throw UsageError(concat("--", name, " is '", text(name), "', but it takes ", right));
  }

 private:
  const cxxopts::ParseResult& flags_;
};

Options read_options(const ValueReader& flags) {
  Options options;
  if (const auto count = flags.text("nproc-per-node"); count == "auto") {
    options.ranks = 0;
  } else if (!count.empty()) {
    const auto number = parse_int(count, 1, kMaxRanks);
    if (!number) flags.refuse("nproc-per-node", concat("auto or a number from 1 to ", kMaxRanks));
    options.ranks = static_cast<int>(*number);
  }
  if (const auto bind = flags.text("bind-to"); bind == "core") {
    options.bind_to = BindTo::kCore;
  } else if (!bind.empty() && bind != "none") {
    flags.refuse("bind-to", "none or core");
  }
  options.master_port = flags.number("master-port", 0, 0, 65535);
  options.log_dir = flags.text("log-dir");
  options.tee = flags.streams("tee");
  options.redirects = flags.streams("redirects");
  if (!options.log_dir.empty() && !flags.is_set("tee") && !flags.is_set("redirects")) {
    options.tee = StreamChoice(3);
  }
  options.report = flags.text("report");
  options.quiet = flags.is_set("quiet");
  options.no_python = flags.is_set("no-python");
  if (flags.is_set("shutdown-timeout")) {
    const auto timeout = parse_duration(flags.text("shutdown-timeout"));
    if (!timeout) flags.refuse("shutdown-timeout", "a time such as 30, 500ms or 10m");
    options.shutdown_timeout = *timeout;
  }
  return options;
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> arguments) {
  Split split = split_arguments(arguments);
  std::vector<char*> words;
  for (std::string& word : split.own) words.push_back(word.data());
  auto description = describe_flags();
  CommandLine line;
  try {
    const auto flags = description.parse(static_cast<int>(words.size()), words.data());
    if (flags.count("help") > 0) return {Action::kHelp, {}};
    if (flags.count("version") > 0) return {Action::kVersion, {}};
    line.options = read_options(ValueReader(flags));
  } catch (const cxxopts::exceptions::exception& error) {
    throw UsageError(error.what());
  }
  line.options.program = std::move(split.program);
  if (line.options.program.empty()) {
    throw UsageError("no program given: convoyrun [FLAGS] PROGRAM [ARGUMENTS...] (see --help)");
  }
  return line;
}

std::string help_text() {
  return describe_flags().help({"Job", "Output", "Stopping", "Help"}) +
         "\nExamples:\n"
         "  convoyrun -n 2 ./train_gpt --data corpus.txt\n"
         "  convoyrun -n auto --bind-to core ./train_gpt --strategy fsdp --data corpus.txt\n"
         "  convoyrun -n 4 --log-dir logs --redirects 1 --report run.json ./my_program\n"
         "  convoyrun -n 2 train.py --epochs 3\n"
         "\nExit code: 0 when all ranks ended with 0; else the code of the rank that failed first, "
         "or "
         "128 +\nsignal; 130 or 143 when told to stop by SIGINT or SIGTERM; 2 usage; 126 not "
         "runnable; 127 not\nfound; 1 own failure. A second signal ends everything at once. "
         "docs/launcher.md has the rest.\n";
}

}  // namespace convoy::launcher
