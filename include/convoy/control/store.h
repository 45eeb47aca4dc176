// The key-value store that ranks use to find each other: the abstract face of it.
#pragma once

#include "convoy/base/deadline.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace convoy {

/// Keys and values of one job, seen by all its ranks. All methods are thread-safe and atomic.
/// Errors: kTimeout (a key did not appear; the text names the missing keys), kPeerLost (the store's
/// owner is gone), kInvalidArgument (key above 8 KiB, value above 8 MiB).
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key exists, then returns its value.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  /// The value, or nothing when there is none now.
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  /// Waits until all keys exist.
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;
  /// Adds to a decimal counter (absent counts as 0) and returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  /// Sets `desired` if the value equals `expected` (empty `expected`: if the key is absent).
  /// Returns the value after the call.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  /// True if there was something to remove.
  virtual bool remove(std::string_view key) = 0;
};

/// A store inside one process, for ranks that are threads and for a world of one.
std::shared_ptr<Store> make_memory_store();

/// A view of `store` in which every key is prefixed with `prefix` and '/'.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);

}  // namespace convoy
