// Timelines: what is kept, where spans are placed, and the file of a run of several ranks.
#include "convoy/base/error.h"
#include "convoy/profile/chrome_trace.h"
#include "convoy/profile/trace_recorder.h"
#include "support/catch.h"
#include "train_gpt/runs.h"

#include <algorithm>
#include <map>
#include <set>

using namespace convoy::testing;
using convoy::profile::place_spans;
using convoy::profile::TraceRecorder;
using convoy::profile::TraceRow;

namespace {

convoy::trace::Event span(std::string name, std::string category, std::int64_t begin,
                          std::int64_t end) {
  return {std::move(name), "", std::move(category), begin, end, 0};
}

/// Spans of one line either follow each other or lie within each other.
void require_nested(const Json& trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lines;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    REQUIRE(event.at("dur").get<double>() >= 0);
    lines[{event.at("pid"), event.at("tid")}].emplace_back(begin,
                                                           begin + event.at("dur").get<double>());
  }
  REQUIRE_FALSE(lines.empty());
  constexpr double kRounding = 0.002;  // Microseconds: doubles of a clock that has run for days.
  for (auto& [line, spans] : lines) {
    CAPTURE(line.first, line.second);
    std::vector<double> open;
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
      CAPTURE(begin, end);
      REQUIRE((open.empty() || end <= open.back() + kRounding));
      open.push_back(end);
    }
  }
}

/// Names of the spans of a rank.
std::multiset<std::string> names_of(const Json& trace, int rank) {
  std::multiset<std::string> names;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("pid") == rank) names.insert(event.at("name"));
  }
  return names;
}

bool has_name_with(const std::multiset<std::string>& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(), [&part](const std::string& name) {
    return name.find(part) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("trace recorder: keeps the newest spans and counts the others") {
  TraceRecorder recorder(3);
  REQUIRE(recorder.events().empty());
  for (int i = 0; i < 5; ++i) recorder.record(span(std::to_string(i), "compute", i, i + 1));
  const auto events = recorder.events();
  REQUIRE(events.size() == 3);
  REQUIRE(events[0].name == "2");
  REQUIRE(events[2].name == "4");
  REQUIRE(recorder.forgotten() == 2);
  REQUIRE_THROWS_AS(TraceRecorder(0), convoy::Error);
}

TEST_CASE("chrome trace: what would overlap on a line goes to another") {
  const std::vector<convoy::trace::Event> events{
      span("all_reduce", "comm", 10, 30), span("all_reduce", "comm", 20, 40),
      span("all_reduce", "comm", 30, 35), span("gather ahead", "comm", 5, 50),
      span("backward", "phase", 0, 60),   span("unit backward", "compute", 1, 20),
      span("all_reduce", "wait", 40, 45), span("odd", "compute", 15, 70)};
  const auto placed = place_spans(events);
  REQUIRE(placed.size() == events.size());
  const auto place = [&](std::size_t index) {
    const auto found = std::find_if(placed.begin(), placed.end(),
                                    [&](const auto& one) { return one.event == &events[index]; });
    return std::pair(found->row, found->lane);
  };
  REQUIRE((place(0) == std::pair(TraceRow::kCollectives, 0)));
  REQUIRE((place(1) == std::pair(TraceRow::kCollectives, 1)));
  REQUIRE((place(2) == std::pair(TraceRow::kCollectives, 0)));
  REQUIRE((place(3) == std::pair(TraceRow::kGathers, 0)));
  REQUIRE((place(4) == std::pair(TraceRow::kTraining, 0)));
  REQUIRE((place(5) == std::pair(TraceRow::kTraining, 0)));
  REQUIRE((place(6) == std::pair(TraceRow::kWaiting, 0)));
  REQUIRE((place(7) == std::pair(TraceRow::kTraining, 1)));
}

TEST_CASE("chrome trace: any name gives valid JSON, and parts merge to one file") {
  const Scratch scratch;
  const std::string odd = "a \"quoted\" \\ name\n\x01 \xC3\xA9 \xFF \xED\xA0\x80";
  std::vector<std::string> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back((scratch.path() / std::to_string(rank)).native());
    std::vector<convoy::trace::Event> events;
    if (rank != 1) {  // A rank that recorded nothing.
      events.push_back({odd, odd, "comm", 1'234'567'890'123'456, 1'234'567'890'123'999, 7});
    }
    convoy::profile::write_chrome_trace(
        parts.back(),
        {.rank = rank, .name = "rank " + std::to_string(rank), .note = "x", .forgotten = 4},
        events);
    REQUIRE(Json::accept(read_whole(parts.back())));
  }
  const std::string whole = (scratch.path() / "trace.json").native();
  convoy::profile::merge_chrome_traces(parts, whole);
  const std::string text = read_whole(whole);
  REQUIRE(text.find("\"ts\":1234567890123.456,\"dur\":0.543,") != std::string::npos);
  const Json trace = Json::parse(text);
  int spans = 0;
  std::set<std::string> processes;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") processes.insert(event["args"]["name"]);
    if (event.at("name") == "process_labels") {
      REQUIRE(event["args"]["labels"] == "x, 4 older spans left out");
    }
    if (event.at("ph") != "X") continue;
    ++spans;
    REQUIRE(event["args"]["bytes"] == 7);
    REQUIRE(event["args"]["what"].get<std::string>().find("\xC3\xA9") != std::string::npos);
  }
  REQUIRE(spans == 2);
  REQUIRE(processes == std::set<std::string>{"rank 0", "rank 1", "rank 2"});
  REQUIRE_THROWS_AS(
      convoy::profile::merge_chrome_traces(std::vector{scratch.write("no", "{}\n")}, whole),
      convoy::Error);
  REQUIRE(read_whole(whole) == text);  // A merge that fails leaves what was there.
  REQUIRE_THROWS_AS(convoy::profile::write_chrome_trace("/no/such/folder/x", {}, {}),
                    convoy::Error);
}

TEST_CASE("train_gpt: --trace shows every rank with phases, units, buckets and gathers") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(30'000, 3));
  const std::string file = (scratch.path() / "trace.json").native();
  const auto traced = [&](int world, const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--data", data, "--trace", file};
    flags.insert(flags.end(), more.begin(), more.end());
    const TrainRun run = train(scratch, world, flags);
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 0);
    REQUIRE_FALSE(std::filesystem::exists(file + ".rank0"));
    Json trace = Json::parse(read_whole(file));
    require_nested(trace);
    for (int rank = 0; rank < world; ++rank) {
      const auto names = names_of(trace, rank);
      for (const char* name : {"step 1", "step 4"}) REQUIRE(names.count(name) == 1);
      for (const char* name : {"data", "forward", "clip", "optimizer"}) {
        CAPTURE(name);
        REQUIRE(names.count(name) == 4);
      }
      REQUIRE(names.count("backward") >= 4);
      REQUIRE(names.count("evaluation") == 1);
    }
    REQUIRE(names_of(trace, world).empty());
    return trace;
  };
  traced(1, {});
  const auto ddp = names_of(traced(2, {"--strategy", "ddp", "--bucket-mb", "0.02"}), 1);
  REQUIRE(has_name_with(ddp, "all_reduce bucket 1 ("));
  const auto fsdp = names_of(traced(3, {"--strategy", "fsdp", "--no-shared-gather"}), 2);
  REQUIRE(fsdp.count("unit forward blocks.1") >= 4);
  REQUIRE(fsdp.count("gather ahead blocks.1") >= 4);
  REQUIRE(fsdp.count("unit backward blocks.0") == 4);
  REQUIRE(has_name_with(fsdp, "reduce_scatter blocks.1"));
}

TEST_CASE("train_gpt: a path that --trace cannot write is refused before anything runs") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(30'000, 3));
  const auto refused = [&](const std::string& path, const std::string& text) {
    const TrainRun run = train(scratch, 1, {"--data", data, "--trace", path});
    INFO(run.result.err);
    REQUIRE(run.result.exit_code == 2);
    REQUIRE(run.result.err.find(text) != std::string::npos);
  };
  refused("/no/such/folder/trace.json", "cannot write --trace '/no/such/folder/trace.json'");
  refused("/dev/null", "it is no regular file");
  REQUIRE(std::filesystem::exists("/dev/null"));
}

TEST_CASE("train_gpt: --trace takes a folder, and a run that fails leaves its ranks' parts") {
  const Scratch scratch;
  const std::string data = scratch.write("text.txt", make_text(30'000, 3));
  const std::string folder = (scratch.path() / "traces/").native();
  const TrainRun run = train(scratch, 1, {"--data", data, "--trace", folder});
  REQUIRE(run.result.exit_code == 0);
  REQUIRE(Json::accept(read_whole(folder + "trace.json")));
  // Where only the ranks' own files can be written, the merge at the end fails.
  std::filesystem::create_directory(folder + "trace.json.part");
  const TrainRun failed = train(scratch, 1, {"--data", data, "--trace", folder});
  REQUIRE(failed.result.exit_code == 1);
  REQUIRE(failed.result.err.find("cannot write the trace") != std::string::npos);
  REQUIRE_FALSE(std::filesystem::exists(folder + "trace.json"));
  REQUIRE(Json::accept(read_whole(folder + "trace.json.rank0")));
}
