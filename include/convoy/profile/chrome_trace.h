// Spans as a timeline that chrome://tracing and Perfetto open: one group of rows for each rank.
#pragma once

#include "convoy/base/trace.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::profile {

/// What a row of a rank's group is for. Waits and operations stand apart from what the rank does.
enum class TraceRow {
  kTraining,    ///< Phases of a step, units and backward: one thread, so that spans nest.
  kWaiting,     ///< The training thread blocked, by operation.
  kGathers,     ///< Units of FSDP, from the begin of a gather to the unit at hand.
  kCollectives  ///< Operations of the communicator, from entering to done.
};

/// A span and its place. Spans of one row that neither nest (in kTraining) nor follow each other go
/// to further lanes of the row, since a viewer shows wrong what overlaps on one line.
struct PlacedSpan {
  const trace::Event* event;
  TraceRow row;
  int lane;  ///< From 0.
};

/// Sorted by begin; of two that begin together the longer first. Pure; keeps pointers into
/// `events`.
std::vector<PlacedSpan> place_spans(std::span<const trace::Event> events);

/// The rank that the spans are of.
struct TraceProcess {
  int rank = 0;
  std::string name;             ///< Of the row group, for example "rank 0".
  std::string note;             ///< Shown beside it; may be empty.
  std::uint64_t forgotten = 0;  ///< Spans that are missing because newer ones took their room.
};

/// Writes one rank's spans as a whole file: {"traceEvents": [...]} with a line for each event,
/// times in microseconds of the machine's monotonic clock, exact to the nanosecond. Written aside
/// and renamed. Error: kSystem with the path.
void write_chrome_trace(const std::string& path, const TraceProcess& process,
                        std::span<const trace::Event> events);

/// Puts files of write_chrome_trace together into one; a part is read line by line, so memory does
/// not grow with them. The parts stay. Errors: kSystem with the path; kInvalidArgument for a part
/// that is no such file.
void merge_chrome_traces(std::span<const std::string> parts, const std::string& path);

}  // namespace convoy::profile
