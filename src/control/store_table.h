// Keys and values with the operations that do not wait. The one meaning of them for every store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace convoy {

/// Bytes of keys and values that one job may keep.
inline constexpr std::size_t kMaxStoreBytes = std::size_t{1} << 30;
/// Longest value: with its key and their lengths it fits into one frame.
std::size_t max_value_bytes(std::string_view key) noexcept;

/// Not thread-safe. Errors: kInvalidArgument (empty or too long key, too long value, a counter that
/// is no number or would overflow), kMemory (full). A failed operation changes
/// nothing.
class StoreTable {
 public:
  explicit StoreTable(std::size_t max_bytes = kMaxStoreBytes) : max_bytes_(max_bytes) {}

  void set(std::string_view key, std::string_view value);
  /// Null when there is none. Valid until the next change.
  const std::string* find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t amount);
  /// `expected` empty matches an absent key too. Returns the value after the call, empty for none.
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool remove(std::string_view key);

 private:
  std::map<std::string, std::string, std::less<>> values_;
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
};

/// Error: kInvalidArgument.
void check_key(std::string_view key);

}  // namespace convoy
