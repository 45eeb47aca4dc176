// Places spans on rows, and writes and merges the JSON of the trace event format.
#include "convoy/profile/chrome_trace.h"

#include "convoy/base/check.h"
#include "json_escape.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>

namespace convoy::profile {
namespace {

constexpr std::string_view kHead = R"({"displayTimeUnit":"ms","traceEvents":[)";
constexpr std::string_view kTail = "]}";
constexpr int kLanesPerRow = 1000;  // Thread ids of a row; far more than are in flight at once.

TraceRow row_of(const trace::Event& event) {
  if (event.category == "wait") return TraceRow::kWaiting;
  if (event.category != "comm") return TraceRow::kTraining;
  return event.name.starts_with("gather") ? TraceRow::kGathers : TraceRow::kCollectives;
}

std::string_view row_name(TraceRow row) {
  switch (row) {
    case TraceRow::kTraining: return "training";
    case TraceRow::kWaiting: return "waiting";
    case TraceRow::kGathers: return "gathers";
    case TraceRow::kCollectives: return "collectives";
  }
  return "unknown";
}

/// The ends of the spans that are open on one line, the innermost last.
using OpenEnds = std::vector<std::int64_t>;

bool takes(OpenEnds& open, const trace::Event& event, bool nests) {
  while (!open.empty() && open.back() <= event.begin_ns) open.pop_back();
  return open.empty() || (nests && event.end_ns <= open.back());
}

int thread_id(TraceRow row, int lane) {
  return 1 + static_cast<int>(row) * kLanesPerRow + std::min(lane, kLanesPerRow - 1);
}

std::string microseconds(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%lld.%03d", static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  return text.data();
}

std::string metadata(int rank, int thread, std::string_view what, std::string_view value) {
  return concat(R"({"name":")", what, R"(","ph":"M","pid":)", rank, R"(,"tid":)", thread,
                R"(,"args":{)", value, "}}");
}

std::string text_argument(std::string_view key, std::string_view text) {
  return concat('"', key, "\":", json_quoted(text));
}

std::vector<std::string> describe_process(const TraceProcess& process) {
  std::string note = process.note;
  if (process.forgotten > 0) {
    note += concat(note.empty() ? "" : ", ", process.forgotten, " older spans left out");
  }
  std::vector<std::string> lines{
      metadata(process.rank, 0, "process_name", text_argument("name", process.name)),
      metadata(process.rank, 0, "process_sort_index", concat("\"sort_index\":", process.rank))};
  if (!note.empty()) {
    lines.push_back(metadata(process.rank, 0, "process_labels", text_argument("labels", note)));
  }
  return lines;
}

std::vector<std::string> describe_thread(int rank, TraceRow row, int lane) {
  const int thread = thread_id(row, lane);
  const std::string name =
      lane == 0 ? std::string(row_name(row)) : concat(row_name(row), ' ', lane + 1);
  return {metadata(rank, thread, "thread_name", text_argument("name", name)),
          metadata(rank, thread, "thread_sort_index", concat("\"sort_index\":", thread))};
}

std::string span_line(int rank, const PlacedSpan& placed) {
  const trace::Event& event = *placed.event;
  const std::string label =
      event.detail.empty() ? event.name : concat(event.name, ' ', event.detail);
  std::string line =
      concat(R"({"name":)", json_quoted(label), R"(,"cat":)", json_quoted(event.category),
             R"(,"ph":"X","pid":)", rank, R"(,"tid":)", thread_id(placed.row, placed.lane),
             R"(,"ts":)", microseconds(event.begin_ns), R"(,"dur":)",
             microseconds(std::max<std::int64_t>(0, event.end_ns - event.begin_ns)), R"(,"args":{)",
             text_argument("what", event.name));
  if (!event.detail.empty()) line += concat(',', text_argument("of", event.detail));
  if (event.bytes > 0) line += concat(R"(,"bytes":)", event.bytes);
  return line + "}}";
}

/// A file of one event a line, that appears whole or not at all.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path)
      : path_(path), partial_(path + ".part"), file_(partial_, std::ios::binary) {
    file_ << kHead;
  }
  ~TraceFile() {
    if (!is_finished_) std::remove(partial_.c_str());
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void add(std::string_view event) {
    file_ << (is_empty_ ? "\n" : ",\n") << event;
    is_empty_ = false;
  }
  void finish() {
    file_ << '\n' << kTail << '\n';
    file_.close();
    if (!file_ || std::rename(partial_.c_str(), path_.c_str()) != 0) {
      throw_system_error(concat("cannot write the trace '", path_, "'"), errno);
    }
    is_finished_ = true;
  }

 private:
  std::string path_;
  std::string partial_;
  std::ofstream file_;
  bool is_empty_ = true;
  bool is_finished_ = false;
};

}  // namespace

std::vector<PlacedSpan> place_spans(std::span<const trace::Event> events) {
  std::vector<PlacedSpan> placed;
  for (const trace::Event& event : events) placed.push_back({&event, row_of(event), 0});
  std::stable_sort(placed.begin(), placed.end(), [](const PlacedSpan& a, const PlacedSpan& b) {
    if (a.event->begin_ns != b.event->begin_ns) return a.event->begin_ns < b.event->begin_ns;
    return a.event->end_ns > b.event->end_ns;
  });
  std::map<TraceRow, std::vector<OpenEnds>> rows;
  for (PlacedSpan& span : placed) {
    auto& lanes = rows[span.row];
    const bool nests = span.row == TraceRow::kTraining;
    while (true) {
      const auto lane = static_cast<std::size_t>(span.lane);
      if (lane == lanes.size()) lanes.emplace_back();
      if (takes(lanes[lane], *span.event, nests)) {
        lanes[lane].push_back(span.event->end_ns);
        break;
      }
      ++span.lane;
    }
  }
  return placed;
}

void write_chrome_trace(const std::string& path, const TraceProcess& process,
                        std::span<const trace::Event> events) {
  const auto placed = place_spans(events);
  TraceFile file(path);
  for (const std::string& line : describe_process(process)) file.add(line);
  std::map<TraceRow, int> lanes;
  for (const PlacedSpan& span : placed) {
    int& known = lanes[span.row];
    for (; known <= span.lane; ++known) {
      for (const std::string& line : describe_thread(process.rank, span.row, known)) {
        file.add(line);
      }
    }
  }
  for (const PlacedSpan& span : placed) file.add(span_line(process.rank, span));
  file.finish();
}

void merge_chrome_traces(std::span<const std::string> parts, const std::string& path) {
  TraceFile merged(path);
  for (const std::string& part : parts) {
    std::ifstream file(part, std::ios::binary);
    if (!file) throw_system_error(concat("cannot read the trace '", part, "'"), errno);
    std::string line;
    CONVOY_REQUIRE(std::getline(file, line) && line == kHead, kInvalidArgument, "'", part,
                   "' is no trace of write_chrome_trace");
    while (std::getline(file, line) && line != kTail) {
      merged.add(line.ends_with(',') ? std::string_view(line).substr(0, line.size() - 1)
                                     : std::string_view(line));
    }
    CONVOY_REQUIRE(line == kTail, kInvalidArgument, "the trace '", part, "' is cut short");
  }
  merged.finish();
}

}  // namespace convoy::profile
