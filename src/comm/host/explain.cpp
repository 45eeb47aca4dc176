// The texts of a group's failures.
#include "comm/host/explain.h"

#include "comm/host/op_header.h"
#include "control/membership.h"
#include "convoy/base/check.h"
#include "convoy/base/trace.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace convoy {
namespace {

std::string seconds_text(std::int64_t nanoseconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g s",
                static_cast<double>(std::max<std::int64_t>(nanoseconds, 0)) * 1e-9);
  return text.data();
}

}  // namespace

std::string name_rank(const HostGroup& group, int rank) {
  return concat("rank ", rank, " (pid ", group.block(rank).pid.load(), ")");
}

std::string describe_last_operation(const HostGroup& group, int rank) {
  const auto newest = group.block(rank).entered.load();
  if (newest == 0) return "it has not entered any operation";
  const auto& header = group.record(rank, newest).header;
  return concat("its last operation is ", describe(header), ", entered ",
                seconds_text(trace::now_ns() - header.entered_ns), " ago");
}

std::string describe_awaited(const HostGroup& group, const OpHeader& op,
                             const std::vector<int>& awaited) {
  if (awaited.empty()) return "no rank is behind";
  std::string text;
  for (const int rank : awaited) {
    if (!text.empty()) text += "; ";
    text += name_rank(group, rank);
    if (group.block(rank).entered.load() >= op.sequence) {
      text += " has entered it but not done its part (it must wait, poll or call operations)";
    } else {
      text += " has not entered it; " + describe_last_operation(group, rank);
    }
  }
  return text;
}

Error explain_mismatch(const HostGroup& group, std::uint64_t sequence) {
  std::vector<int> absent;
  std::vector<std::pair<const OpHeader*, std::vector<int>>> meanings;
  for (int r = 0; r < group.size(); ++r) {
    if (group.block(r).entered.load() < sequence) {
      absent.push_back(r);
      continue;
    }
    const auto& header = group.record(r, sequence).header;
    auto same = std::find_if(meanings.begin(), meanings.end(), [&](const auto& item) {
      return is_same_operation(*item.first, header);
    });
    if (same == meanings.end()) same = meanings.insert(meanings.end(), {&header, {}});
    same->second.push_back(r);
  }
  std::string text = concat("communicator '", group.name(), "': the ranks disagree on operation #",
                            sequence, ": ");
  for (std::size_t i = 0; i < meanings.size(); ++i) {
    text +=
        concat(i > 0 ? "; " : "", name_ranks(meanings[i].second),
               meanings[i].second.size() == 1 ? " calls " : " call ", describe(*meanings[i].first));
  }
  const bool same_text =
      meanings.size() == 2 && describe(*meanings[0].first) == describe(*meanings[1].first);
  if (same_text) text += " (they differ in the rest of the tag, or in the sizes of the parts)";
  if (!absent.empty()) text += concat("; ", name_ranks(absent), " not there yet");
  text += ". All ranks must call the same operations in the same order; nothing was moved";
  // With one odd rank out it is the one to blame; otherwise nobody can tell.
  const auto odd = std::find_if(meanings.begin(), meanings.end(),
                                [](const auto& item) { return item.second.size() == 1; });
  const bool is_clear = meanings.size() == 2 && group.size() > 2 && odd != meanings.end();
  return Error(ErrorKind::kMismatch, text, is_clear ? odd->second.front() : -1);
}

Error explain_timeout(const HostGroup& group, const OpHeader& op, const std::vector<int>& awaited,
                      std::chrono::nanoseconds waited) {
  return Error(ErrorKind::kTimeout,
               concat("communicator '", group.name(), "': ", describe(op), " timed out after ",
                      seconds_text(waited.count()), " on rank ", group.rank(), ": ",
                      describe_awaited(group, op, awaited)),
               awaited.empty() ? -1 : awaited.front());
}

Error explain_lost(const HostGroup& group, int rank, const std::string& what, const OpHeader& op) {
  return Error(ErrorKind::kPeerLost,
               concat("communicator '", group.name(), "': ", name_rank(group, rank), " ", what,
                      "; ", describe_last_operation(group, rank), "; found on rank ", group.rank(),
                      " in ", describe(op)),
               rank);
}

Error explain_no_memory(const HostGroup& group, const OpHeader& op, const ArenaPlan& plan,
                        int rank) {
  const auto& record = group.record(rank, op.sequence);
  const int reason = static_cast<int>(record.outcome);
  const char* advice = "free memory, or raise the limit (memory cgroup, shared_memory_limit)";
  if (reason == EFBIG) advice = "raise the limit of file sizes (ulimit -f), which holds for it too";
  // There was enough, so most likely it could not be mapped.
  if (reason == ENOMEM && std::cmp_greater_equal(record.found, plan.chunk_bytes)) {
    advice = "raise the limit of address space (ulimit -v) or vm.max_map_count, or free memory";
  }
  return Error(ErrorKind::kMemory,
               concat("communicator '", group.name(), "': ", describe(op), ": cannot reserve ",
                      plan.chunk_bytes, " bytes of shared memory for ", group.size(),
                      " ranks: ", name_rank(group, rank), " found ", record.found, " bytes (",
                      std::generic_category().message(reason), "); ", advice),
               rank);
}

}  // namespace convoy
