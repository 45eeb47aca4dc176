// Texts that change while they are trained on, and ranks that see different ones.
#include "convoy/base/check.h"
#include "convoy/data/text.h"
#include "support/catch.h"
#include "support/check.h"
#include "train_gpt/runs.h"

#include <filesystem>
#include <sstream>
#include <vector>

#include <sys/resource.h>

using namespace convoy::testing;
using convoy::ErrorKind;
using convoy::data::Text;
using convoy::test::check_throws;

namespace {

namespace fs = std::filesystem;

std::string read_text(const Text& text, std::int64_t begin, std::size_t count) {
  std::string bytes(count, '\0');
  text.read(begin, {reinterpret_cast<std::uint8_t*>(bytes.data()), count});
  return bytes;
}

void require_one_line(const ProgramResult& result, const std::vector<std::string>& parts) {
  INFO(result.err);
  REQUIRE(result.exit_code == 1);
  for (const std::string& part : parts) REQUIRE(result.err.find(part) != std::string::npos);
  const std::string lines = result.err.substr(0, result.err.find("convoyrun: first failure"));
  REQUIRE(lines.find("error:") == lines.rfind("error:"));
}

}  // namespace

TEST_CASE("text: a file that is cut while it is read is an error that names it") {
  const Scratch scratch;
  const std::string first = scratch.write("first", std::string(100'000, 'a'));
  const std::string second = scratch.write("second", "the end");
  const Text text = Text::open(std::vector{first, second});
  REQUIRE(read_text(text, 99'998, 5) == "aathe");
  fs::resize_file(first, 50'000);
  REQUIRE(read_text(text, 49'990, 10) == std::string(10, 'a'));
  const std::string part = "'" + first + "' has been cut from 100000 to 50000 bytes while";
  for (const std::int64_t begin : {49'991, 60'000, 99'995}) {
    check_throws(ErrorKind::kSystem, part, [&] { read_text(text, begin, 10); });
  }
  check_throws(ErrorKind::kSystem, part, [&] { (void)text.xxh3(); });
  check_throws(ErrorKind::kSystem, part, [&] { (void)text.fingerprint(); });
  REQUIRE(read_text(text, 100'000, 7) == "the end");
}

TEST_CASE("text: more files than a process may have open are read and missed by name") {
  const Scratch scratch;
  std::string expected;
  for (int i = 0; i < 1500; ++i) {
    const std::string content = std::to_string(i) + ' ';
    char name[32];
    std::snprintf(name, sizeof name, "many/%04d", i);
    scratch.write(name, content);
    expected += content;
  }
  const Text text = Text::open(std::vector{(scratch.path() / "many").native()});
  REQUIRE(text.files().size() == 1500);
  REQUIRE(read_text(text, 0, expected.size()) == expected);
  // One that is no longer there, or is another one now, is not taken for what it was.
  const std::string last = (scratch.path() / "many" / "1499").native();
  fs::rename(last, last + ".moved");
  const auto tail = static_cast<std::int64_t>(expected.size()) - 5;
  check_throws(ErrorKind::kSystem, "'" + last + "': ", [&] { read_text(text, tail, 5); });
  scratch.write("many/1499", "9941 ");
  check_throws(ErrorKind::kSystem, "'" + last + "': it is another file now",
               [&] { read_text(text, tail, 5); });
}

TEST_CASE("text: a low limit of open files is left room in") {
  const Scratch scratch;
  std::string expected;
  for (int i = 100; i < 200; ++i) {
    scratch.write("some/" + std::to_string(i), std::to_string(i) + ' ');
    expected += std::to_string(i) + ' ';
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::string found;
  std::string problem;
  try {
    found = read_text(Text::open(std::vector{(scratch.path() / "some").native()}), 0, 400);
  } catch (const convoy::Error& error) {
    problem = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(problem.empty());
  REQUIRE(found == expected);
}

TEST_CASE("text: fingerprints tell texts of equal size apart and large ones by samples") {
  const Scratch scratch;
  const auto fingerprint = [&](const std::string& name, const std::string& bytes) {
    return Text::open(std::vector{scratch.write(name, bytes)}).fingerprint();
  };
  const std::string text = make_text(40'000, 1);
  std::string changed = text;
  changed[20'001] ^= 1;
  REQUIRE(fingerprint("a", text) == fingerprint("b", text));
  REQUIRE(fingerprint("a", text) != fingerprint("b", changed));
  REQUIRE(fingerprint("a", text) != fingerprint("b", text + "x"));
  // Files of holes: large, and on no disk.
  const auto sparse = [&](const std::string& name, std::int64_t size) {
    const std::string path = scratch.write(name, text);
    fs::resize_file(path, static_cast<std::uintmax_t>(size));
    return Text::open(std::vector{path}).fingerprint();
  };
  const std::int64_t large = std::int64_t{20} << 30;
  REQUIRE(sparse("c", large) == sparse("d", large));
  REQUIRE(sparse("c", large) != sparse("d", large + 1));
  scratch.write("e", changed);
  fs::resize_file(scratch.path() / "e", static_cast<std::uintmax_t>(large));
  REQUIRE(sparse("c", large) !=
          Text::open(std::vector{(scratch.path() / "e").native()}).fingerprint());
}

TEST_CASE("train_gpt: ranks with texts of equal size and other bytes end with one error") {
  const Scratch scratch;
  std::string text = make_text(40'000, 1);
  for (const char* rank : {"0", "1"}) scratch.write(std::string("text.") + rank, text);
  text[12'345] ^= 1;
  scratch.write("text.2", text);
  const std::string train =
      "exec " CONVOY_TEST_TRAIN_GPT
      " --model tiny --layers 1 --dim 32 --heads 2 --seq 32 --threads 1 --sample 0 --steps 1"
      " --timeout 60 --eval-windows 12 --micro-batch 2 --data " +
      (scratch.path() / "text.$RANK").native();
  require_one_line(
      run_program({CONVOY_TEST_CONVOYRUN, "-n", "3", "--no-python", "--", "bash", "-c", train}),
      {"the ranks see different data: --data of rank 2", "rank 0"});
}

TEST_CASE("train_gpt: a text that is cut while it trains is named by every rank that speaks") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(400'000, 1));
  for (const char* ranks : {"1", "2"}) {
    fs::resize_file(data, 400'000);
    const std::string command =
        "(until grep -q '\"step\":3,' " + (scratch.path() / "log").native() +
        " 2>/dev/null; do sleep 0.02; done; truncate -s 4096 " + data +
        ") & exec " CONVOY_TEST_CONVOYRUN " -n " + ranks +
        " -- " CONVOY_TEST_TRAIN_GPT
        " --model tiny --layers 1 --dim 32 --heads 2 --seq 32 --threads 1 --sample 0"
        " --steps 1000000 --timeout 60 --micro-batch 2 --data " +
        data + " --json " + (scratch.path() / "log").native();
    fs::remove(scratch.path() / "log");
    const ProgramResult result = run_program({"bash", "-c", command}, std::chrono::seconds(60));
    INFO(result.err);
    REQUIRE(result.exit_code == 1);
    // A rank that hears of it before it reads has a line of its own, which says whose failure it
    // is.
    std::istringstream lines(result.err.substr(0, result.err.find("convoyrun: first failure")));
    int errors = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("error:") == std::string::npos) continue;
      ++errors;
      const std::string cause = "' has been cut from 400000 to 4096 bytes";
      REQUIRE(line.find("cannot read the data: '" + data + cause) != std::string::npos);
    }
    REQUIRE(errors >= 1);
    REQUIRE(errors <= std::stoi(ranks));
  }
}
