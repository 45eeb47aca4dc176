// The output pipes of all ranks, read as fast as the console takes their lines.
#pragma once

#include "programs/convoyrun/log_files.h"
#include "programs/convoyrun/rank_output.h"

#include <memory>
#include <string>
#include <vector>

namespace convoy::launcher {

/// Makes the ranks' ends of stdout and stderr, and forwards what comes. When the console's reader
/// is slow, the pipes are not read until it has caught up: the ranks wait, as they would writing to
/// it themselves, and the launcher's memory does not grow. Thread rule: one thread.
class RankOutputs {
 public:
  RankOutputs(EventLoop& loop, Console& console, const LogFiles& logs);
  ~RankOutputs();
  RankOutputs(const RankOutputs&) = delete;
  RankOutputs& operator=(const RankOutputs&) = delete;

  /// A descriptor for the rank to write to. Error: kSystem.
  Fd open(int rank, Stream stream);
  /// Call it after each round of the event loop: goes on with what was paused.
  void resume();
  /// True when every pipe has ended.
  bool are_closed() const;
  /// True while some pipe waits for the console.
  bool is_paused() const noexcept { return !paused_.empty(); }
  /// Reads what has come and gives up the rest: somebody who left the job still holds a pipe.
  void close_all();

  /// The rank's last lines of stderr.
  std::vector<std::string> stderr_tail(int rank) const;

 private:
  void watch(RankOutput& output);
  void on_readable(RankOutput& output);
  void close(RankOutput& output);

  EventLoop& loop_;
  Console& console_;
  const LogFiles& logs_;
  std::vector<std::unique_ptr<RankOutput>> outputs_;
  std::vector<RankOutput*> paused_;
};

}  // namespace convoy::launcher
