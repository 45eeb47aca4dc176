// Decides which ranks print their error when several have one: of equal texts the lowest rank's.
// Pure.
#pragma once

#include "control/wait_list.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace convoy {

/// Ranks hand in their error and are told "print" or "keep quiet". Those that keep quiet are told
/// so only when the printing ranks are done, because the first exit makes the launcher stop the
/// others, and the line must be out by then. Not thread-safe.
class VerdictBoard {
 public:
  struct Answer {
    RequestId request;
    bool prints = false;
  };

  /// A rank's error, in any order of ranks.
  void add(RequestId request, int rank, std::string text);
  /// The connection has ended: a printing rank is done, others are forgotten.
  void drop(std::uint64_t connection);
  bool has_reported(int rank) const { return reported_.contains(rank); }
  /// True while there are claims that wait for their answer.
  bool is_waiting() const { return !waiting_.empty(); }

  /// Answers that can be given now. `is_complete`: no further rank is expected to report, or the
  /// time for it is over. `is_overdue`: the time that printing ranks have is over as well.
  std::vector<Answer> decide(bool is_complete, bool is_overdue);

 private:
  struct Claim {
    RequestId request;
    int rank = 0;
    std::string text;
  };
  std::vector<Claim> waiting_;
  std::set<std::uint64_t> printing_;  ///< Connections told to print that have not ended.
  std::set<std::string> printed_;
  std::set<int> reported_;
};

}  // namespace convoy
