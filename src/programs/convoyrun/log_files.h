// The folders and files that keep the ranks' output.
#pragma once

#include "convoy/base/fd.h"
#include "programs/convoyrun/options.h"

#include <string>

namespace convoy::launcher {

/// Where the streams of one run are kept: ROOT/<run id>/attempt_0/<local rank>/<stream>.log.
class LogFiles {
 public:
  /// Makes the folders that the options ask for; none when nothing is kept. Where streams are to be
  /// kept and no --log-dir was given, ROOT is a new folder in the system's place for temporary
  /// files, as with torchrun. Error: kSystem naming the folder.
  LogFiles(const Options& options, const std::string& run_id, int ranks);

  /// Folder of the run; empty when nothing is kept.
  const std::string& folder() const noexcept { return folder_; }
  bool keeps(int local_rank, Stream stream) const;
  /// Kept and not shown: the rank writes into the file itself.
  bool only_keeps(int local_rank, Stream stream) const;
  /// Where a stream that is kept lies.
  std::string path(int local_rank, Stream stream) const;
  /// The file, empty and open for writing at its end. Error: kSystem.
  Fd open(int local_rank, Stream stream) const;

 private:
  StreamChoice tee_;
  StreamChoice redirects_;
  std::string folder_;
};

}  // namespace convoy::launcher
