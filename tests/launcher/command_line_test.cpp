// The command line: what belongs to the launcher, what to the program, and what is refused.
#include "programs/convoyrun/options.h"
#include "support/catch.h"

#include <chrono>
#include <string>
#include <vector>

using namespace convoy::launcher;
using Words = std::vector<std::string>;

namespace {

Options parse(const Words& words) { return parse_command_line(words).options; }

std::string refusal(const Words& words) {
  try {
    parse_command_line(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("command line: defaults") {
  const auto options = parse({"prog"});
  CHECK(options.ranks == 1);
  CHECK(options.bind_to == BindTo::kNone);
  CHECK(options.shutdown_timeout == std::chrono::seconds(30));
  CHECK(options.master_port == 0);
  CHECK(options.tee.is_empty());
  CHECK(options.redirects.is_empty());
  CHECK_FALSE(options.quiet);
  CHECK(options.program == Words{"prog"});
}

TEST_CASE("command line: every flag, in every spelling") {
  const auto options = parse({"--standalone",
                              "-n",
                              "4",
                              "--bind_to=core",
                              "--log-dir",
                              "logs",
                              "--tee=0:3,2:1",
                              "-r",
                              "2",
                              "--shutdown_timeout",
                              "500ms",
                              "--no_python",
                              "--report=r.json",
                              "-q",
                              "--master-port",
                              "1234",
                              "train.py",
                              "-n",
                              "7",
                              "--",
                              "--tee",
                              "x"});
  CHECK(options.ranks == 4);
  CHECK(options.bind_to == BindTo::kCore);
  CHECK(options.log_dir == "logs");
  CHECK(options.tee.covers(0, Stream::kOut));
  CHECK(options.tee.covers(0, Stream::kErr));
  CHECK_FALSE(options.tee.covers(1, Stream::kOut));
  CHECK(options.tee.covers(2, Stream::kOut));
  CHECK_FALSE(options.tee.covers(2, Stream::kErr));
  CHECK(options.tee.highest_rank() == 2);
  CHECK_FALSE(options.redirects.covers(5, Stream::kOut));
  CHECK(options.redirects.covers(5, Stream::kErr));
  CHECK(options.shutdown_timeout == std::chrono::milliseconds(500));
  CHECK(options.no_python);
  CHECK(options.report == "r.json");
  CHECK(options.quiet);
  CHECK(options.master_port == 1234);
  CHECK(options.program == Words{"train.py", "-n", "7", "--", "--tee", "x"});
  CHECK(parse({"-n4", "p"}).ranks == 4);
  CHECK(parse({"-n=3", "p"}).ranks == 3);
  CHECK(parse({"--nproc_per_node", "auto", "p"}).ranks == 0);
  CHECK(parse({"-n", "2", "--", "-strange-name", "a"}).program == Words{"-strange-name", "a"});
}

TEST_CASE("command line: a log folder alone keeps and shows both streams") {
  CHECK(parse({"--log-dir", "d", "p"}).tee.covers(3, Stream::kErr));
  CHECK(parse({"--log-dir", "d", "--tee", "0", "p"}).tee.is_empty());
  CHECK(parse({"--log-dir", "d", "--redirects", "1", "p"}).tee.is_empty());
}

TEST_CASE("command line: mistakes are named, with what would be right") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({}), Contains("no program given"));
  CHECK_THAT(refusal({"-n", "2"}), Contains("no program given"));
  CHECK_THAT(refusal({"--nproc-per-nod", "2", "p"}), Contains("'--nproc-per-node'"));
  CHECK_THAT(refusal({"--shutdown-timeuot=3", "p"}), Contains("'--shutdown-timeout'"));
  CHECK_THAT(refusal({"--zzz", "p"}), Contains("unknown flag '--zzz'"));
  CHECK_THAT(refusal({"-x", "p"}), Contains("unknown flag '-x'"));
  CHECK_THAT(refusal({"--n", "2", "p"}), Contains("unknown flag '--n'"));
  CHECK_THAT(refusal({"--quiet=1", "p"}), Contains("takes no value"));
  CHECK_THAT(refusal({"--report"}), Contains("needs a value"));
  CHECK_THAT(refusal({"--report=", "p"}), Contains("is empty"));
  CHECK_THAT(refusal({"--bind-to", "numa", "p"}), Contains("none or core"));
  CHECK_THAT(refusal({"--shutdown-timeout", "soon", "p"}), Contains("'soon'"));
  CHECK_THAT(refusal({"--shutdown-timeout", "-1", "p"}), Contains("'-1'"));
  CHECK_THAT(refusal({"--master-port", "70000", "p"}), Contains("65535"));
  for (const auto* count : {"0", "-1", "x", "2.5", "1e3", " 2", "99999", "gpu"}) {
    INFO(count);
    CHECK_THAT(refusal({"-n", count, "p"}), Contains("it takes auto or a number from 1"));
  }
  for (const auto* streams : {"4", "-1", "x", "0:4", "0:1,", "0:1,0:2", "1:", ":1", "0:1;1:1"}) {
    INFO(streams);
    CHECK_THAT(refusal({"--tee", streams, "p"}), Contains("--tee is"));
    CHECK_THAT(refusal({"--redirects", streams, "p"}), Contains("--redirects is"));
  }
}

TEST_CASE("command line: help and version need no program") {
  CHECK(parse_command_line(Words{"--help"}).action == Action::kHelp);
  CHECK(parse_command_line(Words{"-h"}).action == Action::kHelp);
  CHECK(parse_command_line(Words{"--version"}).action == Action::kVersion);
  // The program's own --help is the program's.
  CHECK(parse_command_line(Words{"p", "--help"}).action == Action::kRun);
}

TEST_CASE("help names every flag of the contract") {
  const auto help = help_text();
  for (const auto* flag :
       {"--standalone", "-n, --nproc-per-node", "--bind-to", "--log-dir", "--tee", "--redirects",
        "--shutdown-timeout", "--no-python", "--report", "--quiet", "--help", "--version"}) {
    INFO(flag);
    CHECK(help.find(flag) != std::string::npos);
  }
  CHECK(help.find("Examples:") != std::string::npos);
}
