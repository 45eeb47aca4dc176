// Draws operations from a seed and compares the store with a model of it.
#include "core/load.h"

#include "core/support.h"

#include <map>
#include <random>

namespace convoy::test {
namespace {

std::string value_of(std::uint64_t seed, int client, int step) {
  std::mt19937_64 random(seed ^ (static_cast<std::uint64_t>(client) << 32) ^
                         static_cast<std::uint64_t>(step));
  std::string value(random() % 300, '\0');
  for (auto& byte : value) byte = static_cast<char>(random());
  return value;
}

class Client {
 public:
  Client(Store& store, int client, int clients, std::uint64_t seed)
      : store_(store),
        client_(client),
        clients_(clients),
        seed_(seed),
        random_(seed + static_cast<std::uint64_t>(client)) {}

  void step(int number) {
    const auto key = concat("own/", client_, "/", random_() % 10);
    switch (random_() % 7) {
      case 0: {
        const auto value = value_of(seed_, client_, number);
        store_.set(key, value);
        model_[key] = value;
        break;
      }
      case 1: {
        const auto found = model_.find(key);
        const auto value = store_.try_get(key);
        require(value.has_value() == (found != model_.end()), "try_get", key);
        if (value) require(*value == found->second, "the value of", key);
        break;
      }
      case 2: require(store_.remove(key) == (model_.erase(key) > 0), "remove", key); break;
      case 3: {
        const auto sum = store_.add("shared/sum", 1);
        require(sum > last_sum_, "a growing sum", "shared/sum");
        last_sum_ = sum;
        ++added_;
        break;
      }
      case 4: {
        // Once set, whoever was first stays.
        const auto shared = concat("shared/first/", random_() % 20);
        const auto winner = store_.compare_set(shared, "", concat("client ", client_));
        const auto [known, is_new] = firsts_.emplace(shared, winner);
        require(known->second == winner, "the first of", shared);
        break;
      }
      case 5: {
        const auto mine = concat("published/", client_, "/", published_);
        store_.set(mine, value_of(seed_, client_, published_++));
        break;
      }
      case 6: get_from_another(); break;
      default: break;
    }
  }

  // Everybody publishes all that others may ask for, and adds what it has added.
  void end(int count) {
    for (; published_ < count / 10 + 1; ++published_) {
      store_.set(concat("published/", client_, "/", published_),
                 value_of(seed_, client_, published_));
    }
    for (const auto& [client, index] : wanted_) {
      const auto key = concat("published/", client, "/", index);
      require(store_.get(key, Deadline::after(60s)) == value_of(seed_, client, index), "get", key);
    }
    store_.add("total", added_);
    store_.set(concat("done/", client_), "");
    std::vector<std::string> all;
    all.reserve(static_cast<std::size_t>(clients_));
    for (int other = 0; other < clients_; ++other) all.push_back(concat("done/", other));
    store_.wait(all, Deadline::after(60s));
    require(store_.get("total", Deadline::after(5s)) == std::to_string(store_.add("shared/sum", 0)),
            "every add counted in", "shared/sum");
  }

 private:
  void require(bool condition, std::string_view what, std::string_view key) {
    check(condition, concat("client ", client_, ", seed ", seed_, ": ", what, " ", key));
  }

  void get_from_another() {
    const int other = static_cast<int>(random_() % static_cast<unsigned>(clients_));
    const int index = static_cast<int>(random_() % 5);
    const auto value = store_.try_get(concat("published/", other, "/", index));
    if (value) {
      require(*value == value_of(seed_, other, index), "published", std::to_string(other));
    } else if (index == 0) {
      wanted_.emplace_back(other, index);  // Waited for at the end, when it must come.
    }
  }

  Store& store_;
  int client_;
  int clients_;
  std::uint64_t seed_;
  std::mt19937_64 random_;
  std::map<std::string, std::string> model_;
  std::map<std::string, std::string> firsts_;
  std::vector<std::pair<int, int>> wanted_;
  std::int64_t last_sum_ = 0;
  std::int64_t added_ = 0;
  int published_ = 0;
};

}  // namespace

void run_random_operations(Store& store, int client, int clients, std::uint64_t seed, int count) {
  Client self(store, client, clients, seed);
  for (int number = 0; number < count; ++number) self.step(number);
  self.end(count);
}

}  // namespace convoy::test
