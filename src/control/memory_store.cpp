// A store under a mutex, with waits on a condition variable.
#include "control/memory_store.h"

#include "control/wait_text.h"

#include <chrono>
#include <vector>

namespace convoy {

void MemoryStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  table_.set(key, value);
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const std::string name(key);
  await(lock, {&name, 1}, deadline);
  return *table_.find(key);
}

std::optional<std::string> MemoryStore::try_get(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto* value = table_.find(key);
  if (value == nullptr) return std::nullopt;
  return *value;
}

void MemoryStore::wait(std::span<const std::string> keys, Deadline deadline) {
  std::unique_lock lock(mutex_);
  await(lock, keys, deadline);
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  const auto sum = table_.add(key, amount);
  changed_.notify_all();
  return sum;
}

std::string MemoryStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  const std::lock_guard lock(mutex_);
  auto value = table_.compare_set(key, expected, desired);
  changed_.notify_all();
  return value;
}

bool MemoryStore::remove(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return table_.remove(key);
}

void MemoryStore::fail_waits(const Error& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  changed_.notify_all();
}

void MemoryStore::await(std::unique_lock<std::mutex>& lock, std::span<const std::string> keys,
                        Deadline deadline) {
  const auto limit = deadline.remaining();
  std::vector<std::string> missing(keys.begin(), keys.end());
  const auto forget_present = [&] {
    std::erase_if(missing, [&](const std::string& key) { return table_.find(key) != nullptr; });
    return missing.empty();
  };
  while (!forget_present()) {
    if (failure_) throw wait_failed(*failure_, name_keys(missing, missing.size()));
    if (deadline.expired()) {
      throw keys_missing(missing, missing.size(), limit, "");
    }
    changed_.wait_until(lock, deadline.point());
  }
}

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace convoy
