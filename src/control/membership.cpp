// The life of each rank as the launcher sees it.
#include "control/membership.h"

#include "convoy/base/check.h"

#include <algorithm>

namespace convoy {
namespace {

bool allowed(MemberState from, MemberState to) {
  switch (to) {
    case MemberState::kAbsent: return false;
    case MemberState::kJoined: return from == MemberState::kAbsent || from == MemberState::kLeft;
    case MemberState::kLeft: return from == MemberState::kJoined;
    case MemberState::kExited: return from != MemberState::kExited;
  }
  return false;
}

template <typename Claim>
std::vector<int> ranks_where(const std::vector<Member>& members, Claim claim) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (claim(members[rank])) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

void Membership::enter(int rank, MemberState to) {
  auto& member = members_[static_cast<std::size_t>(rank)];
  CONVOY_CHECK(allowed(member.state, to), "rank ", rank, ": ", static_cast<int>(member.state),
               " -> ", static_cast<int>(to));
  member.state = to;
}

std::string Membership::objection(int rank, pid_t pid) const {
  const auto& member = at(rank);
  if (member.state == MemberState::kJoined && member.pid == pid) {
    return concat("rank ", rank, " (process ", pid,
                  ") has a session already; a process keeps one Job and copies it");
  }
  if (member.state == MemberState::kJoined) {
    return concat("two processes claim to be rank ", rank, ": ", member.pid,
                  ", which came first, and ", pid);
  }
  if (member.state == MemberState::kExited) {
    return concat("process ", pid, " claims to be rank ", rank, ", whose process has ended");
  }
  return {};
}

void Membership::join(int rank, pid_t pid) {
  enter(rank, MemberState::kJoined);
  auto& member = members_[static_cast<std::size_t>(rank)];
  member.pid = pid;
  member.has_joined = true;
  member.is_finished = false;
  member.may_report = false;
}

void Membership::leave(int rank, bool may_report) {
  enter(rank, MemberState::kLeft);
  members_[static_cast<std::size_t>(rank)].may_report = may_report;
}

void Membership::exit(int rank) {
  if (at(rank).state == MemberState::kExited) return;
  enter(rank, MemberState::kExited);
  members_[static_cast<std::size_t>(rank)].may_report = false;
}

void Membership::finish(int rank) { members_[static_cast<std::size_t>(rank)].is_finished = true; }

std::vector<int> Membership::never_joined() const {
  return ranks_where(members_, [](const Member& m) { return !m.has_joined; });
}

std::vector<int> Membership::gone() const {
  return ranks_where(members_, [](const Member& m) { return m.is_gone(); });
}

std::vector<int> Membership::unfinished() const {
  return ranks_where(members_, [](const Member& m) { return !m.is_finished && !m.is_gone(); });
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const auto shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > shown) text += concat(" and ", ranks.size() - shown, " more");
  return text;
}

}  // namespace convoy
