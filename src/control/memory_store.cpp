// The store of ranks that live in one process.
#include <condition_variable>
#include <map>
#include <mutex>

#include "convoy/base/check.h"
#include "convoy/control/store.h"

namespace convoy {
namespace {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
    changed_.notify_all();
  }

  std::string get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    wait_for(lock, key, deadline);
    return values_.find(key)->second;
  }

  std::optional<std::string> try_get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    for (const auto& key : keys) wait_for(lock, key, deadline);
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    auto& value = values_[std::string(key)];
    const auto sum = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(sum);
    changed_.notify_all();
    return sum;
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    const std::lock_guard lock(mutex_);
    auto& value = values_[std::string(key)];
    if (value == expected) value = desired;
    changed_.notify_all();
    return value;
  }

  bool remove(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    values_.erase(found);
    return true;
  }

 private:
  void wait_for(std::unique_lock<std::mutex>& lock, std::string_view key, Deadline deadline) {
    const bool there = changed_.wait_until(lock, deadline.point(), [&] { return values_.contains(key); });
    CONVOY_REQUIRE(there, kTimeout, "store: key '", key, "' did not appear in time");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace convoy
