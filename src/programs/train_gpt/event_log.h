// The --json file: whole lines, written by rank 0 as things happen.
#pragma once

#include "convoy/base/fd.h"
#include "programs/train_gpt/json_line.h"

#include <string>

namespace convoy::train_gpt {

/// Writes each event with one system call, so that a reader never sees half a line. An empty path
/// makes a log that writes nothing.
class EventLog {
 public:
  EventLog() = default;
  /// Begins the file anew, for one rank. The others look whether it can be written, so that all
  /// refuse a wrong path in the same words. Error: kInvalidArgument if it cannot be written.
  EventLog(const std::string& path, bool is_writer);

  /// Error: kSystem when the line cannot be written.
  void write(const JsonLine& event);

 private:
  std::string path_;
  Fd file_;
};

}  // namespace convoy::train_gpt
