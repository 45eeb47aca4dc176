// The store of ranks that live in one process.
#pragma once

#include "control/store_table.h"
#include "convoy/base/error.h"
#include "convoy/control/store.h"

#include <condition_variable>
#include <mutex>
#include <optional>

namespace convoy {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool remove(std::string_view key) override;

  /// Waits for keys that are not there end with `failure`, now and from now on.
  void fail_waits(const Error& failure);

 private:
  /// Returns once all keys have been there.
  void await(std::unique_lock<std::mutex>& lock, std::span<const std::string> keys,
             Deadline deadline);

  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
  std::optional<Error> failure_;
};

}  // namespace convoy
