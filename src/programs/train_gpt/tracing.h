// What --trace asks for: every rank records its spans, and rank 0 puts them into one file.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/profile/trace_recorder.h"

#include <memory>
#include <string>

namespace convoy::train_gpt {

/// Records the spans of one rank and writes them as a Chrome trace. Each rank writes a part beside
/// the file, `FILE.rank<R>`; when all have, rank 0 merges and removes them. After a failure the
/// parts stay: each opens by itself. Thread rule: the training thread, but for the sinks.
class Tracing {
 public:
  /// `target` is a file, or a folder for `trace.json` in it; empty: nothing is recorded. Looks at
  /// once whether it can be written, and removes what an earlier run left there.
  /// Error: kInvalidArgument where it cannot be written.
  Tracing(const std::string& target, int rank, int world);

  /// For the phases of the program; null where nothing is recorded.
  trace::Sink* sink() const noexcept { return recorder_.get(); }
  /// For the communicator: what it records goes to `meter` too.
  std::shared_ptr<trace::Sink> beside(std::shared_ptr<trace::Sink> meter) const;

  /// Writes the file. Collective. Error: kSystem.
  void save(Communicator& comm);
  /// Leaves this rank's part, for a run that has failed. Throws nothing: the failure matters more.
  void leave_part() noexcept;

 private:
  std::string part_of(int rank) const;
  void write_part() const;

  std::string path_;
  int rank_;
  int world_;
  std::shared_ptr<profile::TraceRecorder> recorder_;
};

}  // namespace convoy::train_gpt
