// Writes a file that is either whole or not there.
#pragma once

#include "convoy/base/fd.h"

#include <string>
#include <string_view>

namespace convoy::launcher {

/// The file of --report. Its place is tried out at once, so that a wrong path is known before the
/// job has run for a day.
class ReportFile {
 public:
  /// Opens a temporary file beside `path`. Error: kSystem naming the path.
  explicit ReportFile(std::string path);
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;
  ~ReportFile();

  /// Writes, makes it durable, and puts it in its place by rename. Call it once. Error: kSystem.
  void write(std::string_view text);

 private:
  std::string path_;
  std::string temporary_;
  Fd file_;
};

}  // namespace convoy::launcher
