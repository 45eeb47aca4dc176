// Requests that wait for keys to appear. Pure: no sockets, no clocks.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// A request of a connection.
struct RequestId {
  std::uint64_t connection = 0;
  std::uint32_t number = 0;
  auto operator<=>(const RequestId&) const = default;
};

/// Which request waits for which keys. A key counts once it has appeared, even if it is removed
/// while the request still waits for others. Not thread-safe.
class WaitList {
 public:
  bool contains(RequestId request) const { return requests_.contains(request); }
  /// `keys` (at least one) are those that are not there now.
  void add(RequestId request, std::set<std::string> keys);
  /// The key is there: requests that wait for nothing more, which are forgotten here.
  std::vector<RequestId> appeared(std::string_view key);
  /// Forgets the request. The keys it still waited for; empty if it is not in the list.
  std::set<std::string> cancel(RequestId request);
  /// Forgets all requests of a connection.
  void drop(std::uint64_t connection);
  /// Requests of a connection that wait.
  std::size_t count(std::uint64_t connection) const;

 private:
  std::map<RequestId, std::set<std::string>> requests_;
  std::map<std::string, std::set<RequestId>, std::less<>> by_key_;
};

}  // namespace convoy
