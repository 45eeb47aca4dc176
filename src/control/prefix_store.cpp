// A store seen through a key prefix, so that users of one store cannot meet by accident.
#include "convoy/control/store.h"

#include <vector>

namespace convoy {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix) + "/") {}

  void set(std::string_view key, std::string_view value) override { store_->set(full(key), value); }
  std::string get(std::string_view key, Deadline deadline) override {
    return store_->get(full(key), deadline);
  }
  std::optional<std::string> try_get(std::string_view key) override {
    return store_->try_get(full(key));
  }
  void wait(std::span<const std::string> keys, Deadline deadline) override {
    std::vector<std::string> all;
    for (const auto& key : keys) all.push_back(full(key));
    store_->wait(all, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return store_->add(full(key), amount);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return store_->compare_set(full(key), expected, desired);
  }
  bool remove(std::string_view key) override { return store_->remove(full(key)); }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace convoy
