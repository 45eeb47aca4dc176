// Who prints, and when the others may go.
#include "control/verdict_board.h"

#include <algorithm>

namespace convoy {

void VerdictBoard::add(RequestId request, int rank, std::string text) {
  reported_.insert(rank);
  waiting_.push_back({request, rank, std::move(text)});
}

void VerdictBoard::drop(std::uint64_t connection) {
  printing_.erase(connection);
  std::erase_if(waiting_, [&](const Claim& c) { return c.request.connection == connection; });
}

std::vector<VerdictBoard::Answer> VerdictBoard::decide(bool is_complete, bool is_overdue) {
  std::vector<Answer> answers;
  if (!is_complete) return answers;
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [](const Claim& a, const Claim& b) { return a.rank < b.rank; });
  std::erase_if(waiting_, [&](const Claim& claim) {
    if (!printed_.insert(claim.text).second) return false;
    printing_.insert(claim.request.connection);
    answers.push_back({claim.request, true});
    return true;
  });
  if (printing_.empty() || is_overdue) {
    for (const auto& claim : waiting_) answers.push_back({claim.request, false});
    waiting_.clear();
  }
  return answers;
}

}  // namespace convoy
