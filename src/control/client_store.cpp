// Store operations over the control channel.
#include "control/client_store.h"

#include "control/membership.h"
#include "control/store_table.h"
#include "control/wait_text.h"
#include "convoy/base/check.h"
#include "convoy/base/parse.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace convoy {
namespace {

std::vector<int> narrow(const std::vector<std::int64_t>& ranks) {
  std::vector<int> narrowed(ranks.size());
  std::transform(ranks.begin(), ranks.end(), narrowed.begin(),
                 [](std::int64_t rank) { return static_cast<int>(rank); });
  return narrowed;
}

class ClientStore final : public Store {
 public:
  ClientStore(std::shared_ptr<ControlLink> link, std::int64_t generation)
      : link_(std::move(link)), prefix_(concat("g", generation, "/")) {}

  void set(std::string_view key, std::string_view value) override {
    check_value(key, value);
    link_->call(FrameType::kSet, FieldWriter().text(full(key)).text(value).take());
  }

  std::string get(std::string_view key, Deadline deadline) override {
    const auto payload = FieldWriter().text(full(key)).take();
    return wait_for(FrameType::kGet, payload, deadline).value;
  }

  std::optional<std::string> try_get(std::string_view key) override {
    auto reply = link_->call(FrameType::kTryGet, FieldWriter().text(full(key)).take());
    if (reply.status == ReplyStatus::kNothing) return std::nullopt;
    return std::move(reply.value);
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    CONVOY_REQUIRE(keys.size() <= kMaxKeys, kInvalidArgument, "store: a wait for ", keys.size(),
                   " keys, the limit is ", kMaxKeys);
    FieldWriter writer;
    writer.u32(static_cast<std::uint32_t>(keys.size()));
    for (const auto& key : keys) writer.text(full(key));
    wait_for(FrameType::kWait, writer.take(), deadline);
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const auto reply =
        link_->call(FrameType::kAdd, FieldWriter().text(full(key)).i64(amount).take());
    const auto sum = parse_int(reply.value);
    CONVOY_REQUIRE(sum.has_value(), kProtocol, "store: the launcher answered add with '",
                   reply.value, "'");
    return *sum;
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    check_value(key, desired);
    check_value(key, expected);
    const auto payload = FieldWriter().text(full(key)).text(expected).text(desired).take();
    return link_->call(FrameType::kCompareSet, payload).value;
  }

  bool remove(std::string_view key) override {
    const auto reply = link_->call(FrameType::kRemove, FieldWriter().text(full(key)).take());
    return reply.status == ReplyStatus::kOk;
  }

 private:
  std::string full(std::string_view key) const {
    check_key(key);
    auto name = prefix_ + std::string(key);
    check_key(name);
    return name;
  }

  // Refused here, before a frame that is too large is built.
  void check_value(std::string_view key, std::string_view value) const {
    const auto limit = max_value_bytes(full(key));
    CONVOY_REQUIRE(value.size() <= limit, kInvalidArgument, "store: a value of ", value.size(),
                   " bytes for key '", key, "' is above the limit of ", limit, " bytes");
  }

  Reply wait_for(FrameType type, const std::string& payload, Deadline deadline) {
    const auto limit = deadline.remaining();
    auto reply = link_->call_waiting(type, payload, deadline);
    if (reply.status != ReplyStatus::kUnfulfilled) return reply;
    auto& facts = reply.unfulfilled;
    for (auto& key : facts.keys) {
      if (key.starts_with(prefix_)) key.erase(0, prefix_.size());
    }
    if (const auto failure = link_->failure().get(); failure && !deadline.expired()) {
      throw wait_failed(*failure, name_keys(facts.keys, facts.key_count));
    }
    const auto error = keys_missing(facts.keys, facts.key_count, limit, describe_membership(facts));
    const int to_blame = facts.not_joined.size() == 1 ? narrow(facts.not_joined).front() : -1;
    throw Error(error.kind(), error.what(), to_blame);
  }

  std::shared_ptr<ControlLink> link_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_client_store(std::shared_ptr<ControlLink> link,
                                         std::int64_t generation) {
  return std::make_shared<ClientStore>(std::move(link), generation);
}

std::string describe_membership(const Unfulfilled& unfulfilled) {
  const auto phrase = [](const std::vector<std::int64_t>& ranks, const char* singular,
                         const char* plural) {
    if (ranks.empty()) return std::string();
    return concat("; ", name_ranks(narrow(ranks)), ranks.size() == 1 ? singular : plural);
  };
  return phrase(unfulfilled.not_joined, " has not joined the job", " have not joined the job") +
         phrase(unfulfilled.left, " has left it", " have left it");
}

}  // namespace convoy
