// Keeps the two directions, request to keys and key to requests, in step.
#include "control/wait_list.h"

#include <iterator>
#include <limits>

namespace convoy {

void WaitList::add(RequestId request, std::set<std::string> keys) {
  for (const auto& key : keys) by_key_[key].insert(request);
  requests_.insert_or_assign(request, std::move(keys));
}

std::vector<RequestId> WaitList::appeared(std::string_view key) {
  std::vector<RequestId> done;
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return done;
  for (const auto request : found->second) {
    auto entry = requests_.find(request);
    entry->second.erase(found->first);
    if (!entry->second.empty()) continue;
    requests_.erase(entry);
    done.push_back(request);
  }
  by_key_.erase(found);
  return done;
}

std::set<std::string> WaitList::cancel(RequestId request) {
  const auto entry = requests_.find(request);
  if (entry == requests_.end()) return {};
  auto keys = std::move(entry->second);
  requests_.erase(entry);
  for (const auto& key : keys) {
    const auto found = by_key_.find(key);
    found->second.erase(request);
    if (found->second.empty()) by_key_.erase(found);
  }
  return keys;
}

void WaitList::drop(std::uint64_t connection) {
  for (;;) {
    const auto entry = requests_.lower_bound({connection, 0});
    if (entry == requests_.end() || entry->first.connection != connection) return;
    cancel(entry->first);
  }
}

std::size_t WaitList::count(std::uint64_t connection) const {
  const auto begin = requests_.lower_bound({connection, 0});
  const auto end = requests_.upper_bound({connection, std::numeric_limits<std::uint32_t>::max()});
  return static_cast<std::size_t>(std::distance(begin, end));
}

}  // namespace convoy
