// Rank 0's error on every rank.
#include "convoy/checkpoint/first_rank.h"

#include "convoy/base/exception_text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace convoy::saving {
namespace {

constexpr std::int64_t kNoError = -1;

}  // namespace

void FirstRank::run(const std::function<void()>& task) noexcept {
  if (!is_first() || error_) return;
  try {
    task();
  } catch (const Error& error) {
    error_ = error;
  } catch (const std::bad_alloc&) {
    error_ = Error(ErrorKind::kMemory, "there is not enough memory", 0);
  } catch (const std::exception& error) {
    error_ = Error(ErrorKind::kSystem, exception_text(error), 0);
  }
}

void FirstRank::agree() {
  if (comm_ != nullptr && comm_->size() > 1) {
    at::Tensor facts = at::empty({3}, at::kLong);
    auto* numbers = facts.mutable_data_ptr<std::int64_t>();
    numbers[0] = error_ ? static_cast<std::int64_t>(error_->kind()) : kNoError;
    numbers[1] = error_ ? error_->rank() : 0;
    numbers[2] = error_ ? static_cast<std::int64_t>(std::strlen(error_->what())) : 0;
    comm_->broadcast(facts, 0, wait_for_disk(*comm_, "rank 0's result", disk_limit_))->wait();
    if (numbers[0] != kNoError) {
      at::Tensor text = at::empty({numbers[2]}, at::kByte);
      if (error_) std::memcpy(text.mutable_data_ptr(), error_->what(), text.nbytes());
      comm_->broadcast(text, 0, {.tag = "rank 0's error"})->wait();
      error_ = Error(static_cast<ErrorKind>(numbers[0]),
                     std::string(static_cast<const char*>(text.const_data_ptr()), text.nbytes()),
                     static_cast<int>(numbers[1]));
    }
  }
  if (error_) throw Error(*std::exchange(error_, std::nullopt));
}

OpOptions wait_for_disk(const Communicator& comm, std::string tag,
                        std::chrono::nanoseconds disk_limit) {
  OpOptions options{.tag = std::move(tag)};
  if (comm.rank() != 0) options.timeout = std::max(disk_limit, comm.options().timeout);
  return options;
}

void on_first_rank(Communicator* comm, const std::function<void()>& task) {
  FirstRank first(comm);
  first.run(task);
  first.agree();
}

}  // namespace convoy::saving
